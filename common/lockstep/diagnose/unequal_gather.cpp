#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/diagnose/unequal_gather.h>

#include <algorithm>
#include <csignal>

namespace lockstep::diagnose {
namespace {

bool is_gather(const trace::Collective& call) {
  return call.op.find("allgather") != std::string::npos;
}

// The same gather of unequal sizes has gone well before.
bool took_one_before(const Run& run, const trace::Collective& call) {
  std::map<std::int64_t, std::set<std::vector<std::int64_t>>> sizes;  // by sequence
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Collective>())
      if (at.event->group == call.group && at.event->sequence < call.sequence &&
          is_gather(*at.event))
        sizes[at.event->sequence].insert(at.event->sizes);
  return std::any_of(sizes.begin(), sizes.end(),
                     [](const auto& one) { return one.second.size() > 1; });
}

// By somebody else: then neither its call nor those that fail with it say anything of the gather.
bool was_stopped(const RankAtStall& rank) {
  const auto signal = rank.end != nullptr ? rank.end->signal : 0;
  return rank.state == RankState::stopped || signal == SIGKILL || signal == SIGTERM ||
         signal == SIGINT;
}

bool has_ended(const RankAtStall& rank) {
  return rank.state == RankState::raised || rank.state == RankState::dead ||
         rank.state == RankState::lost;
}

// The rank did not come out of it: it ended there, or the others are through.
bool was_left_in(const RankAtStall& rank, const std::vector<Call>& calls) {
  bool stays = false, others_left = false;
  for (const auto& call : calls) {
    if (call.rank == rank.rank)
      stays = !completed(call);
    else if (completed(call))
      others_left = true;
  }
  return stays && (others_left || has_ended(rank));
}

}  // namespace

Verdict unequal_gather(const Run& run) {
  const auto& place = stall_of(run);
  if (!place || std::any_of(place->ranks.begin(), place->ranks.end(), was_stopped)) return clean();
  const auto& all = calls_of(run);
  for (const auto& rank : place->ranks) {
    const auto* last = rank.call != nullptr ? rank.call : rank.last;
    if (last == nullptr || last->group != place->group) continue;
    const auto at = all.find({last->group, last->sequence});
    if (at == all.end() || at->second.size() != place->ranks.size()) continue;
    const auto& calls = at->second;
    std::vector<int> ranks;
    std::vector<std::vector<std::int64_t>> sizes;
    for (const auto& call : calls) {
      if (!is_gather(*call.collective)) return clean();
      ranks.push_back(call.rank);
      sizes.push_back(call.collective->sizes);
    }
    const auto odd = odd_ones_out(ranks, sizes);
    if (odd.empty() || !was_left_in(rank, calls) || took_one_before(run, *last)) continue;
    return found(
        {.ranks = odd,
         .step = calls.front().step,
         .sequence = last->sequence,
         .evidence = fmt::format(
             "the ranks' sizes differ, and a rank did not come out of it, at number {}: {}",
             last->sequence, describe_all(calls))});
  }
  return clean();
}

}  // namespace lockstep::diagnose
