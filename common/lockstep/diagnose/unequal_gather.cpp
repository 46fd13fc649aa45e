#include <lockstep/diagnose/stall.h>
#include <lockstep/diagnose/unequal_gather.h>

#include <algorithm>
#include <csignal>

namespace lockstep::diagnose {
namespace {

// The same gather of unequal sizes has gone well before.
bool took_one_before(const Run& run, const Stall& place) {
  std::map<std::int64_t, std::set<std::vector<std::int64_t>>> sizes;  // by sequence
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::Collective>())
      if (at.event->group == place.group && at.event->sequence < place.sequence &&
          at.event->op.find("allgather") != std::string::npos)
        sizes[at.event->sequence].insert(at.event->sizes);
  return std::any_of(sizes.begin(), sizes.end(),
                     [](const auto& one) { return one.second.size() > 1; });
}

}  // namespace

Verdict unequal_gather(const Run& run) {
  const auto& place = stall_of(run);
  if (!place) return clean();
  std::vector<int> ranks;
  std::vector<std::vector<std::int64_t>> sizes;
  std::string evidence;
  bool ended_in_it = false;
  for (const auto& rank : place->ranks) {
    if (rank.call == nullptr || rank.call->op.find("allgather") == std::string::npos)
      return clean();
    ranks.push_back(rank.rank);
    sizes.push_back(rank.call->sizes);
    const bool killed = rank.end != nullptr && rank.end->signal == SIGKILL;  // by somebody else
    ended_in_it = ended_in_it || rank.state == RankState::raised ||
                  (rank.state == RankState::dead && !killed);
    evidence += (evidence.empty() ? "rank " : "; rank ") + std::to_string(rank.rank) + ": " +
                describe(*rank.call);
  }
  const auto odd = odd_ones_out(ranks, sizes);
  if (odd.empty() || !ended_in_it || took_one_before(run, *place)) return clean();
  return found({.ranks = odd,
                .step = place->step,
                .sequence = place->sequence,
                .evidence = "the ranks' sizes differ, and a rank ended in it, at number " +
                            std::to_string(place->sequence) + ": " + evidence});
}

}  // namespace lockstep::diagnose
