// Pitfalls of where ranks stand: their devices, their number, their threads.
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/launch_detectors.h>

#include <algorithm>
#include <optional>
#include <set>

namespace lockstep::diagnose {
namespace {

// A rank by what it recorded, the first of each.
struct Standing {
  int rank = 0;
  const trace::Place* place = nullptr;
  const trace::Device* chosen = nullptr;
  const trace::Device* of_group = nullptr;
  const trace::Shard* shard = nullptr;
  const trace::Dataset* dataset = nullptr;  // of training
};

std::vector<Standing> standings(const Run& run) {
  std::vector<Standing> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& rank = *run.ranks[r];
    Standing standing{.rank = run.numbers[r]};
    if (const auto places = rank.latest<trace::Place>(); !places.empty())
      standing.place = places.front().event;
    for (const auto& at : rank.latest<trace::Device>()) {
      auto& seen = at.event->moment == "chosen" ? standing.chosen : standing.of_group;
      if (seen == nullptr) seen = at.event;
    }
    if (const auto shards = rank.latest<trace::Shard>(); !shards.empty())
      standing.shard = shards.front().event;
    for (const auto& at : rank.latest<trace::Dataset>())
      if (standing.dataset == nullptr && at.event->phase == "train") standing.dataset = at.event;
    all.push_back(standing);
  }
  return all;
}

std::optional<Verdict> not_several_ranks(const Run& run) {
  if (run.devices) return not_triggered("one process drives the devices");
  if (run.world_size < 2) return not_applicable("one rank has all to itself");
  return std::nullopt;
}

// Ranks that chose a device that they do not have.
Verdict beyond_the_visible(const trace::Trace& trace, const std::string& slug,
                           bool (*is_it)(const Standing&)) {
  const Run run(trace);
  if (auto verdict = not_several_ranks(run)) return *verdict;
  bool looked = false;
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& at : standings(run)) {
    if (at.place == nullptr || at.chosen == nullptr) continue;
    looked = true;
    if (at.chosen->index < at.chosen->visible || !is_it(at)) continue;
    if (ranks.empty())
      evidence = "rank " + std::to_string(at.rank) + ", local rank " +
                 std::to_string(at.place->local_rank) + " of " +
                 std::to_string(at.place->local_world_size) + " on its node, chose device " +
                 std::to_string(at.chosen->index) + " of the " +
                 std::to_string(at.chosen->visible) + " that it sees, counted from 0";
    ranks.push_back(at.rank);
  }
  if (!looked) return not_triggered("no rank recorded its place and the device it chose");
  if (ranks.empty()) return clean();
  return found({.pitfall = slug, .ranks = ranks, .evidence = evidence});
}

}  // namespace

Verdict rank_as_device_index(const trace::Trace& trace) {
  return beyond_the_visible(trace, "rank-as-device-index", [](const Standing& at) {
    return at.chosen->index == at.rank && at.rank != at.place->local_rank;
  });
}

Verdict visible_devices_remapped(const trace::Trace& trace) {
  return beyond_the_visible(trace, "visible-devices-remapped", [](const Standing& at) {
    return at.chosen->index == at.place->local_rank &&
           at.chosen->visible < at.place->local_world_size;
  });
}

Verdict duplicate_gpu(const trace::Trace& trace) {
  const Run run(trace);
  if (auto verdict = not_several_ranks(run)) return *verdict;
  std::map<std::uint64_t, std::vector<int>> by_device;
  for (const auto& at : standings(run))
    if (at.chosen != nullptr && at.chosen->id != 0) by_device[at.chosen->id].push_back(at.rank);
  if (by_device.empty()) return not_triggered("no rank recorded the device it chose");
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& [id, there] : by_device) {
    if (there.size() < 2) continue;
    evidence += (evidence.empty() ? "" : "; ") + ranks_text(there, "is", "are") + " on one device";
    ranks.insert(ranks.end(), there.begin(), there.end());
  }
  if (ranks.empty()) return clean();
  std::sort(ranks.begin(), ranks.end());
  return found({.pitfall = "duplicate-gpu", .ranks = ranks, .evidence = evidence});
}

Verdict device_not_set(const trace::Trace& trace) {
  const Run run(trace);
  if (auto verdict = not_several_ranks(run)) return *verdict;
  std::map<std::uint64_t, std::set<int>> touched_by;
  bool looked = false;
  const auto all = standings(run);
  for (const auto& at : all) {
    if (at.chosen == nullptr || at.of_group == nullptr) continue;
    looked = true;
    touched_by[at.chosen->id].insert(at.rank);
    touched_by[at.of_group->id].insert(at.rank);
  }
  if (!looked) return not_triggered("no rank recorded its own device and its group's");
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& at : all) {
    if (at.chosen == nullptr || at.of_group == nullptr) continue;
    if (at.chosen->id == 0 || at.of_group->id == at.chosen->id) continue;
    if (touched_by[at.of_group->id].size() < 2) continue;
    if (ranks.empty())
      evidence = "the process group of rank " + std::to_string(at.rank) + " was made on device " +
                 std::to_string(at.of_group->index) + ", which is another rank's too, and not on " +
                 std::to_string(at.chosen->index) + ", which the rank goes by";
    ranks.push_back(at.rank);
  }
  if (ranks.empty()) return clean();
  return found({.pitfall = "device-not-set", .ranks = ranks, .evidence = evidence});
}

Verdict world_size_from_device_count(const trace::Trace& trace) {
  const Run run(trace);
  if (auto verdict = not_several_ranks(run)) return *verdict;
  if (!run.complete) return not_triggered("a rank left no trace");
  const auto all = standings(run);
  std::set<std::uint64_t> nodes;
  std::int64_t most_on_a_node = 0;
  for (const auto& at : all) {
    if (at.place == nullptr || at.shard == nullptr)
      return not_triggered("a rank recorded no place, or no shard of the data");
    nodes.insert(at.place->node);
    most_on_a_node = std::max(most_on_a_node, at.place->local_world_size);
  }
  if (nodes.size() < 2) return not_applicable("on one node both numbers are the same");
  const auto replicas = all.front().shard->num_replicas;
  // Shard and data: ranks that agree in both draw the same samples.
  std::set<std::pair<std::int64_t, std::uint64_t>> different;
  for (const auto& at : all) {
    if (at.shard->num_replicas != replicas) return clean();
    different.insert({at.shard->rank, at.dataset == nullptr ? 0 : at.dataset->ids_as_set});
  }
  if (replicas != most_on_a_node || replicas >= run.world_size || different.size() == all.size())
    return clean();
  return found({.pitfall = "world-size-from-device-count",
                .ranks = run.numbers,
                .evidence = "the data are split into " + plural(replicas, "shard") +
                            ", as many as a node has ranks, for " + plural(run.world_size, "rank") +
                            " on " + plural(static_cast<std::int64_t>(nodes.size()), "node") +
                            "; a learning rate scaled by that number is off by as much"});
}

namespace {

// The most threads that this rank computed with in training.
std::int64_t threads_in_training(const trace::ParticipantTrace& rank) {
  std::int64_t before = 0, during = 0;
  for (const auto& at : rank.latest<trace::Place>())
    if (at.step < 0)
      before = at.event->threads;
    else
      during = std::max(during, at.event->threads);
  return std::max(before, during);
}

}  // namespace

Verdict thread_oversubscription(const trace::Trace& trace) {
  struct Machine {
    std::vector<int> ranks;
    std::int64_t threads = 0, processors = 0;
  };
  const Run run(trace);
  if (auto verdict = not_several_ranks(run)) return *verdict;
  if (!run.complete) return not_triggered("a rank left no trace");
  std::map<std::uint64_t, Machine> nodes;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto places = run.ranks[r]->latest<trace::Place>();
    if (places.empty()) return not_triggered("a rank recorded no place");
    auto& node = nodes[places.front().event->node];
    node.ranks.push_back(run.numbers[r]);
    node.threads += threads_in_training(*run.ranks[r]);
    node.processors = std::max(node.processors, places.front().event->processors);
  }
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& [number, node] : nodes) {
    const auto room = std::max(node.processors, static_cast<std::int64_t>(node.ranks.size()));
    if (node.threads <= room) continue;
    if (ranks.empty())
      evidence = ranks_text(node.ranks, "computes", "compute") + " with " +
                 plural(node.threads, "thread") + " on " + plural(node.processors, "processor") +
                 "; OMP_NUM_THREADS = " +
                 std::to_string(room / static_cast<std::int64_t>(node.ranks.size())) + " would fit";
    ranks.insert(ranks.end(), node.ranks.begin(), node.ranks.end());
  }
  if (ranks.empty()) return clean();
  std::sort(ranks.begin(), ranks.end());
  return found({.pitfall = "thread-oversubscription",
                .severity = Severity::advice,
                .ranks = ranks,
                .evidence = evidence});
}

}  // namespace lockstep::diagnose
