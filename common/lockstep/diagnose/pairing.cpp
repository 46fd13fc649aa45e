#include <lockstep/diagnose/pairing.h>
#include <lockstep/trace/point_to_point.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace lockstep::diagnose {
namespace {

// Of each update of a rank its step, and how many collectives of this group the rank had made by then.
using CallsBefore = std::vector<std::pair<std::int64_t, std::int64_t>>;
CallsBefore calls_before_updates(const trace::ParticipantTrace& rank, const std::string& group) {
  std::vector<std::int64_t> calls;  // of each the step
  for (const auto& at : rank.latest<trace::Collective>())
    if (at.event->group == group && !trace::is_point_to_point(*at.event)) calls.push_back(at.step);
  std::ranges::sort(calls);
  CallsBefore before;
  for (const auto& at : rank.latest<trace::Update>())
    before.emplace_back(at.step, std::ranges::upper_bound(calls, at.step) - calls.begin());
  return before;
}

// A step counts where all ranks made an update: join() takes a rank through others.
std::optional<SkippedUpdate> skipped_by(const Run& run, const std::string& group) {
  std::vector<CallsBefore> ranks;
  for (const auto* rank : run.ranks) ranks.push_back(calls_before_updates(*rank, group));
  if (std::ranges::all_of(ranks, [&](const auto& rank) { return rank == ranks.front(); }))
    return {};
  std::map<std::int64_t, std::vector<std::int64_t>> steps;
  for (const auto& rank : ranks)
    for (const auto& [step, calls] : rank) steps[step].push_back(calls);
  std::erase_if(steps, [&](const auto& step) { return step.second.size() < run.ranks.size(); });
  auto of_a_step = INT64_MAX;  // the fewest between two updates
  const std::vector<std::int64_t>* before = nullptr;
  for (const auto& [step, calls] : steps) {
    for (std::size_t r = 0; before != nullptr && r < calls.size(); ++r)
      of_a_step = std::min(of_a_step, calls[r] - (*before)[r]);
    before = &calls;
    const auto [fewest, most] = std::ranges::minmax(calls);
    if (of_a_step == 0 || (most > fewest && most - fewest < of_a_step)) return {};
    if (most == fewest) continue;
    SkippedUpdate found{.step = step, .ranks = {}};
    for (std::size_t r = 0; r < calls.size(); ++r)
      if (calls[r] > fewest) found.ranks.push_back(run.numbers[r]);
    return found;
  }
  return {};
}

// By a group whose ranks are all there.
std::optional<SkippedUpdate> find_skipped(const Run& run) {
  if (run.devices || run.ranks.size() < 2) return {};
  std::set<std::string> groups;
  for (const auto& at : run.ranks.front()->latest<trace::Collective>())
    groups.insert(at.event->group);
  for (const auto& at : run.ranks.front()->all<trace::Group>())
    if (at.event->members.size() < static_cast<std::size_t>(run.world_size))
      groups.erase(at.event->name);
  for (const auto& group : groups)
    if (auto found = skipped_by(run, group)) return found;
  return {};
}

}  // namespace

const std::optional<SkippedUpdate>& update_skipped(const Run& run) {
  return run.once(find_skipped);
}

}  // namespace lockstep::diagnose
