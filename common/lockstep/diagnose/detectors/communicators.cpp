// Two groups that ranks go through in different orders.
#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <map>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict communicator_order(const Run& run);
}  // namespace

std::vector<Detector> communicators_detectors() {
  return {
      // Needs collectives of two groups. Rule: the first calls that two ranks do not complete are
      // of two groups that both are in, neither has completed the other's, and both ranks waited.
      // Not fooled by ranks that make all calls in one order and wait for them in another, nor by
      // groups of which a rank that waits is no member, nor by a root that got through a call in
      // which the others wait for somebody else.
      {.slug = "communicator-order",
       .equation = Equation::same_calls,
       .needs = {"collective"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::collectives,
       .detect = communicator_order},
  };
}

namespace {
struct Caller {
  int rank = 0;
  // The groups that it is in (so it said, or it has called them): the number of the last call that it completed there.
  std::map<std::string, std::int64_t> groups;
  const trace::Collective* stuck = nullptr;  // the first call that it did not complete
  std::int64_t step = -1;
  bool waited = false;  // in that; a rank that failed at once was cut off by another's end
};

constexpr std::int64_t kNone = -1;

Caller caller_of(const trace::ParticipantTrace& rank) {
  Caller caller{.rank = rank.participant.rank};
  for (const auto& at : rank.latest<trace::Group>())
    if (at.event->action != "replicas" &&
        std::count(at.event->members.begin(), at.event->members.end(), caller.rank) != 0)
      caller.groups.emplace(at.event->name, kNone);
  auto group = caller.groups.end();  // a rank mostly calls one group again and again
  for (const auto& at : rank.latest<trace::Collective>()) {
    if (is_point_to_point(*at.event)) continue;
    if (group == caller.groups.end() || group->first != at.event->group)
      group = caller.groups.emplace(at.event->group, kNone).first;
    const bool completed = at.left_ns != 0 && at.event->failed == 0;
    if (completed) group->second = std::max(group->second, at.event->sequence);
    if (completed || caller.stuck) continue;
    caller.stuck = at.event;
    caller.step = at.step;
    caller.waited = at.left_ns == 0 || at.left_ns - at.time_ns >= kStallTimeNs;
  }
  return caller;
}

// It is in the group of the call in which the other waits, and has yet to do its part there.
bool owes(const Caller& caller, const Caller& other) {
  const auto group = caller.groups.find(other.stuck->group);
  return group != caller.groups.end() && group->second < other.stuck->sequence;
}

struct Crossing {
  const Caller* one = nullptr;
  const Caller* other = nullptr;
};

// Two that wait in one group each, and each for the other.
std::optional<Crossing> crossed(const std::vector<Caller>& waiting) {
  for (const auto& one : waiting)
    for (const auto& other : waiting)
      if (one.stuck->group != other.stuck->group && owes(one, other) && owes(other, one))
        return Crossing{&one, &other};
  return std::nullopt;
}

Verdict communicator_order(const Run& run) {
  std::vector<Caller> waiting;
  std::set<std::string> groups;
  for (const auto* rank : run.ranks) {
    auto caller = caller_of(*rank);
    for (const auto& [group, completed] : caller.groups) groups.insert(group);
    if (caller.waited) waiting.push_back(std::move(caller));
  }
  if (groups.empty()) return not_triggered("no collective was recorded");
  if (groups.size() < 2) return not_applicable("the ranks use one group");
  const auto two = crossed(waiting);
  if (!two) return clean();

  const auto& one = *two->one;
  const auto& other = *two->other;
  std::vector<int> ranks, first, second;
  std::vector<std::string> waits_in;
  for (const auto& caller : waiting) {
    const auto& group = caller.stuck->group;
    if (group != one.stuck->group && group != other.stuck->group) continue;
    ranks.push_back(caller.rank);
    waits_in.push_back(group);
    (group == one.stuck->group ? first : second).push_back(caller.rank);
  }
  return found({.ranks = odd_ones_out(ranks, waits_in),
                .step = std::min(one.step, other.step),
                .sequence = one.stuck->sequence,
                .evidence = fmt::format("{} in {} of group {}, and {} in {} of group {}: each "
                                        "comes to the other's only behind its own",
                                        ranks_text(first, "waits", "wait"), numbered(*one.stuck),
                                        one.stuck->group, ranks_text(second, "waits", "wait"),
                                        numbered(*other.stuck), other.stuck->group)});
}

}  // namespace
}  // namespace lockstep::diagnose
