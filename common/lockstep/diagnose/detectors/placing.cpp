// Pitfalls of where ranks run: their devices, their number, their threads.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict rank_as_device_index(const Run& run);
Verdict visible_devices_remapped(const Run& run);
Verdict duplicate_gpu(const Run& run);
Verdict device_not_set(const Run& run);
Verdict world_size_from_device_count(const Run& run);
Verdict thread_oversubscription(const Run& run);
}  // namespace

std::vector<Detector> placing_detectors() {
  return {
      // Rule: a rank chose a device beyond those it sees, whose index is its rank and not its local
      // rank (or is both on each rank, and all index by rank).
      {.slug = "rank-as-device-index",
       .equation = Equation::one_job,
       .needs = {"placement", "device"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::start,
       .detect = rank_as_device_index},
      // Rule: a rank chose a device beyond those it sees, whose index is its local rank, and the
      // node has devices that it does not see. Also where ranks see one device under different
      // indices, and chose it.
      {.slug = "visible-devices-remapped",
       .equation = Equation::one_job,
       .needs = {"placement", "device"},
       .participants = Participants::ranks,
       .complete = false,
       .stage = Stage::start,
       .detect = visible_devices_remapped},
      // Rule: ranks chose one and the same device, under one index.
      {.slug = "duplicate-gpu",
       .equation = Equation::one_job,
       .needs = {"device"},
       .participants = Participants::ranks,
       .complete = false,
       .of_job = true,
       .detect = duplicate_gpu},
      // Needs `device` of both moments. Rule: a rank's process group was made on another device
      // than the rank chose, and that one is another rank's too.
      {.slug = "device-not-set",
       .equation = Equation::one_job,
       .needs = {"device"},
       .participants = Participants::ranks,
       .complete = false,
       .of_job = true,
       .detect = device_not_set},
      // Rule: ranks that are replicas (their reduced gradients are equal) on several nodes hold the
      // same data, and each splits them into as many shards as its node has ranks or devices, of
      // which no two ranks of a node share one.
      {.slug = "world-size-from-device-count",
       .equation = Equation::own_samples,
       .line = "",
       .needs = {"placement", "shard", "dataset", "reduced_gradients"},
       .participants = Participants::ranks,
       .accounts_for = {"no-sharding", "shares-of-data-overlap"},
       .detect = world_size_from_device_count},
      // Needs `placement` of every rank. Advice. Rule: in training, ranks that may use the same
      // processors compute with more threads than those are, and some with several.
      {.slug = "thread-oversubscription",
       .equation = Equation::none,
       .needs = {"placement"},
       .participants = Participants::ranks,
       .of_job = true,
       .detect = thread_oversubscription},
  };
}

namespace {
// A rank by what it recorded; of several the last.
struct RankPlacement {
  int rank = 0;
  const trace::Placement* place = nullptr;
  const trace::Device* chosen = nullptr;
  const trace::Device* of_group = nullptr;
};

std::vector<RankPlacement> placements(const Run& run) {
  std::vector<RankPlacement> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& rank = *run.ranks[r];
    RankPlacement own{.rank = run.numbers[r]};
    for (const auto& at : rank.latest<trace::Placement>()) own.place = at.event;
    for (const auto& at : rank.latest<trace::Device>()) {
      if (at.event->visible == 0) continue;  // a job on CPUs
      if (at.event->moment == "chosen") own.chosen = at.event;
      if (at.event->moment == "group") own.of_group = at.event;
    }
    all.push_back(own);
  }
  return all;
}

bool beyond_the_visible(const RankPlacement& at) {
  return at.place != nullptr && at.chosen != nullptr && at.chosen->index >= at.chosen->visible;
}

// Every rank takes its rank for the index, and on some that is not its local rank.
bool all_index_by_rank(const std::vector<RankPlacement>& all) {
  bool differs = false;
  for (const auto& at : all) {
    if (at.place == nullptr || at.chosen == nullptr) continue;
    if (at.chosen->index != at.rank) return false;
    differs = differs || at.rank != at.place->local_rank;
  }
  return differs;
}

// Ranks that chose the same device, each device's in a list; in the order of their first ranks, whatever the
// devices are called.
std::vector<std::vector<const RankPlacement*>> by_device(const std::vector<RankPlacement>& all) {
  std::vector<std::vector<const RankPlacement*>> devices;
  std::map<std::uint64_t, std::size_t> place;
  for (const auto& at : all) {
    if (at.chosen == nullptr || at.chosen->id == 0) continue;
    const auto [known, is_new] = place.emplace(at.chosen->id, devices.size());
    if (is_new) devices.emplace_back();
    devices[known->second].push_back(&at);
  }
  return devices;
}

std::string took(const RankPlacement& at) {
  return fmt::format(
      "rank {}, local rank {} of {} on its node, chose device {} of the {} that it sees, counted "
      "from 0",
      at.rank, at.place->local_rank, at.place->local_world_size, at.chosen->index,
      at.chosen->visible);
}

const char* const kNoDevice = "no rank recorded its place and the device it chose";

Verdict rank_as_device_index(const Run& run) {
  const auto all = placements(run);
  if (std::none_of(all.begin(), all.end(), [](const auto& at) { return at.place && at.chosen; }))
    return not_triggered(kNoDevice);
  std::vector<int> ranks;
  std::string evidence;
  const bool by_rank = all_index_by_rank(all);
  for (const auto& at : all) {
    if (!beyond_the_visible(at) || at.chosen->index != at.rank) continue;
    if (!by_rank && at.rank == at.place->local_rank) continue;
    if (ranks.empty()) evidence = took(at);
    ranks.push_back(at.rank);
  }
  if (ranks.empty()) return clean();
  return found({.ranks = ranks, .evidence = evidence});
}

Verdict visible_devices_remapped(const Run& run) {
  const auto all = placements(run);
  if (std::none_of(all.begin(), all.end(), [](const auto& at) { return at.place && at.chosen; }))
    return not_triggered(kNoDevice);
  if (all_index_by_rank(all)) return clean();  // hidden or not, it is the wrong number
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& at : all) {
    if (!beyond_the_visible(at) || at.chosen->index != at.place->local_rank) continue;
    if (at.chosen->present <= at.chosen->visible) continue;  // no others that were hidden
    if (ranks.empty())
      evidence = fmt::format("{}, and the node has {}", took(at), at.chosen->present);
    ranks.push_back(at.rank);
  }
  for (const auto& there : by_device(all)) {
    const auto other = std::find_if(there.begin(), there.end(), [&](const auto* at) {
      return at->chosen->index != there.front()->chosen->index;
    });
    if (other == there.end()) continue;
    if (ranks.empty())
      evidence =
          fmt::format("what rank {} sees as device {} is device {} to rank {}, and both chose it",
                      there.front()->rank, there.front()->chosen->index, (*other)->chosen->index,
                      (*other)->rank);
    for (const auto* at : there) ranks.push_back(at->rank);
  }
  if (ranks.empty()) return clean();
  std::sort(ranks.begin(), ranks.end());
  return found({.ranks = ranks, .evidence = evidence});
}

Verdict duplicate_gpu(const Run& run) {
  const auto all = placements(run);
  const auto devices = by_device(all);
  if (devices.empty()) return not_triggered("no rank recorded the device it chose");
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& there : devices) {
    const bool one_index = std::all_of(there.begin(), there.end(), [&](const auto* at) {
      return at->chosen->index == there.front()->chosen->index;
    });
    if (there.size() < 2 || !one_index) continue;
    std::vector<int> sharing;
    for (const auto* at : there) sharing.push_back(at->rank);
    evidence += fmt::format("{}{} on one device", evidence.empty() ? "" : "; ",
                            ranks_text(sharing, "is", "are"));
    ranks.insert(ranks.end(), sharing.begin(), sharing.end());
  }
  if (ranks.empty()) return clean();
  std::sort(ranks.begin(), ranks.end());
  return found({.ranks = ranks, .evidence = evidence});
}

Verdict device_not_set(const Run& run) {
  std::map<std::uint64_t, std::set<int>> touched_by;
  auto all = placements(run);
  std::erase_if(all, [](const auto& at) {
    return !at.chosen || !at.of_group || at.chosen->id == 0 || at.of_group->id == 0;
  });
  for (const auto& at : all) {
    touched_by[at.chosen->id].insert(at.rank);
    touched_by[at.of_group->id].insert(at.rank);
  }
  if (all.empty()) return not_triggered("no rank recorded its own device and its group's");
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& at : all) {
    if (at.of_group->id == at.chosen->id) continue;
    if (touched_by[at.of_group->id].size() < 2) continue;
    if (ranks.empty())
      evidence = fmt::format(
          "the process group of rank {} was made on device {}, which is another rank's too, and "
          "not on {}, which the rank goes by",
          at.rank, at.of_group->index, at.chosen->index);
    ranks.push_back(at.rank);
  }
  if (ranks.empty()) return clean();
  return found({.ranks = ranks, .evidence = evidence});
}

// What a rank trains on, and where.
struct Sharding {
  const trace::Placement* place = nullptr;
  const trace::Shard* shard = nullptr;
  const trace::Dataset* dataset = nullptr;
  std::int64_t visible = 0;          // devices; 0 = not recorded
  std::vector<std::uint64_t> means;  // hashes of the first reduced gradients
};

std::vector<Sharding> shardings(const Run& run) {
  std::vector<Sharding> all;
  for (const auto* rank : run.ranks) {
    Sharding one;
    for (const auto& at : rank->latest<trace::Placement>()) one.place = at.event;
    for (const auto& at : rank->latest<trace::Shard>())
      if (at.event->phase == "train") one.shard = at.event;
    for (const auto& at : rank->latest<trace::Dataset>())
      if (at.event->phase == "train") one.dataset = at.event;
    for (const auto& at : rank->latest<trace::Device>())
      if (at.event->moment == "chosen") one.visible = at.event->visible;
    if (const auto reduced = rank->latest<trace::ReducedGradients>(); !reduced.empty())
      for (const auto& value : reduced.front().event->values) one.means.push_back(value.hash);
    all.push_back(one);
  }
  return all;
}

// The ranks of one model, each with its own samples, or parts of one (tensor or pipeline parallel)?
bool replicas(const std::vector<Sharding>& all) {
  return std::all_of(all.begin(), all.end(),
                     [&](const Sharding& one) { return one.means == all.front().means; });
}

Verdict world_size_from_device_count(const Run& run) {
  const auto all = shardings(run);
  std::map<std::uint64_t, std::set<std::int64_t>> shards_of_node;
  std::map<std::uint64_t, std::size_t> ranks_of_node;
  std::int64_t most_on_a_node = 0;
  for (const auto& one : all) {
    if (!one.place || !one.shard || !one.dataset || one.means.empty())
      return not_triggered(
          "a rank recorded no place, no shard of the train data, no data set or no gradients");
    most_on_a_node = std::max(most_on_a_node, one.place->local_world_size);
    shards_of_node[one.place->node].insert(one.shard->rank);
    ++ranks_of_node[one.place->node];
  }
  if (ranks_of_node.size() < 2) return not_applicable("on one node both numbers are the same");
  if (!replicas(all)) return clean();
  for (const auto& one : all) {
    const auto into = one.shard->num_replicas;
    const bool by_node = into == one.place->local_world_size || into == most_on_a_node ||
                         (one.visible > 0 && into == one.visible);
    // Ranks of a node that share a shard are parts of one replica, and data may lie by node.
    if (!by_node || into >= run.world_size ||
        shards_of_node[one.place->node].size() < ranks_of_node[one.place->node] ||
        one.dataset->ids_as_set != all.front().dataset->ids_as_set)
      return clean();
  }
  return found({.ranks = run.numbers,
                .evidence = fmt::format(
                    "rank {} splits the data into {}, as many as its node has ranks or devices, of "
                    "a job of {} on {}: each node goes through all of them",
                    run.numbers.front(), plural(all.front().shard->num_replicas, "shard"),
                    plural(run.world_size, "rank"),
                    plural(static_cast<std::int64_t>(ranks_of_node.size()), "node"))});
}

// The most threads that this rank computed with from its first sample on; of a program that
// recorded no training, those it had last.
std::int64_t threads_in_training(const trace::ParticipantTrace& rank) {
  std::int64_t now = 0, most = 0;
  bool trains = false;
  for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i) {
    const auto& event = rank.events[i];
    if (const auto* place = event.as<trace::Placement>()) now = place->threads;
    trains = trains || event.is<trace::Samples>() || event.is<trace::Update>();
    if (trains) most = std::max(most, now);
  }
  return trains ? most : now;
}

Verdict thread_oversubscription(const Run& run) {
  // Ranks that may use the same processors of one machine.
  struct Sharing {
    std::vector<int> ranks;
    std::int64_t threads = 0, processors = 0;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Sharing> sets;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto places = run.ranks[r]->latest<trace::Placement>();
    if (places.empty()) return not_triggered("a rank recorded no place");
    const auto& place = *places.back().event;
    auto& set = sets[{place.node, place.processor_set}];
    set.ranks.push_back(run.numbers[r]);
    set.threads += threads_in_training(*run.ranks[r]);
    set.processors = place.processors;
  }
  std::vector<int> ranks;
  std::string evidence;
  for (const auto& [which, set] : sets) {
    const auto sharing = static_cast<std::int64_t>(set.ranks.size());
    if (set.threads <= std::max(set.processors, sharing)) continue;
    if (ranks.empty())
      evidence = fmt::format("{} with {} on {}; OMP_NUM_THREADS = {} {}",
                             ranks_text(set.ranks, "computes", "compute"),
                             plural(set.threads, "thread"), plural(set.processors, "processor"),
                             std::max<std::int64_t>(1, set.processors / sharing),
                             sharing > set.processors ? "is the least" : "would fit");
    ranks.insert(ranks.end(), set.ranks.begin(), set.ranks.end());
  }
  if (ranks.empty()) return clean();
  std::sort(ranks.begin(), ranks.end());
  return found({.severity = Severity::advice, .ranks = ranks, .evidence = evidence});
}

}  // namespace
}  // namespace lockstep::diagnose
