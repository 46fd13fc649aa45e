#include <lockstep/report/stop.h>

#include <algorithm>

namespace lockstep::report {
namespace {

Stop::Call call_of(const trace::Collective* call) {
  if (call == nullptr) return {};
  return {call->op, call->sequence, call->group};
}

}  // namespace

Stop stop_of(const diagnose::Standstill& place) {
  Stop stop{place.operation, place.sequence, place.group, place.step, {}};
  const auto culprits = place.culprits();
  for (const auto& at : place.ranks) {
    Stop::Rank rank{.rank = at.rank, .stand = diagnose::to_string(at.stand)};
    rank.to_blame = std::find(culprits.begin(), culprits.end(), &at) != culprits.end();
    rank.here = call_of(at.call);
    rank.last = call_of(at.last);
    if (at.end != nullptr) {
      rank.ended = at.end->how;
      rank.exit_code = at.end->exit_code;
      rank.signal = at.end->signal;
    }
    stop.ranks.push_back(std::move(rank));
  }
  return stop;
}

}  // namespace lockstep::report
