#include <lockstep/report/stall.h>

#include <algorithm>

namespace lockstep::report {
namespace {

Stall::Call call_of(const trace::Collective* call) {
  if (call == nullptr) return {};
  return {call->op, call->sequence, call->group};
}

}  // namespace

Stall stall_of(const diagnose::Stall& place) {
  Stall stall{place.operation, place.sequence, place.group, place.step, {}};
  const auto culprits = place.culprits();
  for (const auto& at : place.ranks) {
    Stall::Rank rank{.rank = at.rank, .state = diagnose::to_string(at.state)};
    rank.to_blame = std::find(culprits.begin(), culprits.end(), &at) != culprits.end();
    rank.here = call_of(at.call);
    rank.last = call_of(at.last);
    if (at.end != nullptr) {
      rank.ended = at.end->how;
      rank.exit_code = at.end->exit_code;
      rank.signal = at.end->signal;
    }
    stall.ranks.push_back(std::move(rank));
  }
  return stall;
}

}  // namespace lockstep::report
