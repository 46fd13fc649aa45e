#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/pairing.h>
#include <lockstep/trace/point_to_point.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace lockstep::diagnose {
namespace {

// Of each update of a rank, by its step, how many collectives of this group it had made by then.
std::map<std::int64_t, std::int64_t> calls_before_updates(const trace::ParticipantTrace& rank,
                                                          const std::string& group) {
  std::map<std::int64_t, std::int64_t> calls;
  std::int64_t made = 0;
  for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i) {
    const auto* call = rank.events[i].as<trace::Collective>();
    if (call && call->group == group && !trace::is_point_to_point(*call)) ++made;
    if (rank.events[i].is<trace::Update>()) calls[rank.events[i].step] = made;
  }
  return calls;
}

// A step counts where all ranks made an update: join() takes a rank through others.
std::optional<SkippedUpdate> skipped_by(const Run& run, const std::string& group) {
  std::map<std::int64_t, std::vector<std::int64_t>> steps;
  for (const auto* rank : run.ranks)
    for (const auto& [step, calls] : calls_before_updates(*rank, group))
      steps[step].push_back(calls);
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
  for (const auto& at : run.ranks.front()->all<trace::Collective>()) groups.insert(at.event->group);
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
