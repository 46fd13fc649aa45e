// Two groups that ranks go through in different orders.
#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/hang_detectors.h>
#include <lockstep/diagnose/standstill.h>

#include <algorithm>
#include <set>

namespace lockstep::diagnose {
namespace {

struct Caller {
  int rank = 0;
  std::set<std::string> groups;              // that it is in: so it said, or it has called them
  const trace::Collective* stuck = nullptr;  // the first call that it did not complete
  std::int64_t step = -1;
  bool waited = false;  // in that; a rank that failed at once was cut off by another's end
};

Caller caller_of(const trace::ParticipantTrace& rank) {
  Caller caller{.rank = rank.participant.rank};
  for (const auto& at : rank.latest<trace::Group>())
    if (std::count(at.event->members.begin(), at.event->members.end(), caller.rank) != 0)
      caller.groups.insert(at.event->name);
  const std::string* last = nullptr;  // a rank mostly calls one group again and again
  for (const auto& at : rank.latest<trace::Collective>()) {
    if (is_point_to_point(*at.event)) continue;
    if (!last || *last != at.event->group) caller.groups.insert(at.event->group);
    last = &at.event->group;
    const bool completed = at.event->left_ns != 0 && at.event->failed == 0;
    if (completed || caller.stuck) continue;
    caller.stuck = at.event;
    caller.step = at.step;
    caller.waited = at.event->left_ns == 0 ||
                    at.event->left_ns - at.time_ns >= std::chrono::nanoseconds(kStandstill).count();
  }
  return caller;
}

using Groups = std::pair<std::string, std::string>;

// A group in which ranks wait, and another that one of them is in; and the other way round.
std::optional<Groups> crossed(const std::vector<Caller>& waiting) {
  std::set<std::string> waited_in;
  for (const auto& caller : waiting) waited_in.insert(caller.stuck->group);
  std::set<Groups> seen;
  for (const auto& caller : waiting)
    for (const auto& other : caller.groups) {
      if (other == caller.stuck->group || waited_in.count(other) == 0) continue;
      if (seen.count({other, caller.stuck->group}) != 0) return Groups{other, caller.stuck->group};
      seen.insert({caller.stuck->group, other});
    }
  return std::nullopt;
}

}  // namespace

Verdict communicator_order(const trace::Trace& trace) {
  const Run run(trace);
  if (run.devices) return not_triggered("one process drives the devices");
  if (run.world_size < 2) return not_applicable("one rank waits for nobody");
  std::vector<Caller> waiting;
  std::set<std::string> groups;
  for (const auto* rank : run.ranks) {
    auto caller = caller_of(*rank);
    groups.insert(caller.groups.begin(), caller.groups.end());
    if (caller.waited) waiting.push_back(std::move(caller));
  }
  if (groups.empty()) return not_triggered("no collective was recorded");
  if (groups.size() < 2) return not_applicable("the ranks use one group");
  const auto two = crossed(waiting);
  if (!two) return clean();

  std::vector<int> ranks, first, second;
  std::vector<std::string> waits_in;
  std::map<std::string, const Caller*> told;
  for (const auto& caller : waiting) {
    const auto& group = caller.stuck->group;
    if (group != two->first && group != two->second) continue;
    ranks.push_back(caller.rank);
    waits_in.push_back(group);
    (group == two->first ? first : second).push_back(caller.rank);
    told.emplace(group, &caller);
  }
  const auto& one = *told.at(two->first);
  const auto& other = *told.at(two->second);
  return found({.pitfall = "communicator-order",
                .ranks = odd_ones_out(ranks, waits_in),
                .step = std::min(one.step, other.step),
                .sequence = one.stuck->sequence,
                .evidence = ranks_text(first, "waits", "wait") + " in " + numbered(*one.stuck) +
                            " of group " + two->first + ", and " +
                            ranks_text(second, "waits", "wait") + " in " + numbered(*other.stuck) +
                            " of group " + two->second +
                            ": each comes to the other's only behind its own"});
}

}  // namespace lockstep::diagnose
