// The parts of lesson 10, one file each, and what they share.
#pragma once

#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include <algorithm>
#include <cstdint>
#include <vector>

// The ranks of this machine spread over two simulated nodes; 2 ranks are on one.
struct Node {
  explicit Node(const lockstep::RankContext& context)
      : devices(std::max(2, (context.world_size() + 1) / 2)),
        number(context.rank() / devices),
        local_rank(context.rank() % devices),
        local_world_size(std::min(devices, context.world_size() - number * devices)) {}

  int devices;  // of each node
  int number;
  int local_rank;
  int local_world_size;

  lockstep::trace::Placement place() const {
    auto place = lockstep::record::placement_of_this_process();
    place.node += static_cast<std::uint64_t>(number);
    place.local_rank = local_rank;
    place.local_world_size = local_world_size;
    return place;
  }
};

// For the trace: where this process is, and with how many threads. Again where that changes.
void tell_place(lockstep::RankContext& context, const lockstep::trace::Placement& place =
                                                    lockstep::record::placement_of_this_process());

// A rank's batches, step by step: of the samples that all ranks take in a step, its own are `size`
// that follow each other. Tells that they are one pass.
std::vector<std::vector<std::int64_t>> consecutive_batches(const lockstep::RankContext& context,
                                                           std::int64_t steps, std::int64_t size);

// What a launched job is for: two steps of training. Collective over context.group().
void train_a_little(lockstep::RankContext& context);
// Its ranks that came to the end of that.
lockstep::Measured ranks_that_trained(const lockstep::Outcomes& outcomes);

lockstep::Part devices_part();
lockstep::Part shards_part();
lockstep::Part threads_part();
lockstep::Part rendezvous_part();
lockstep::Part spawning_part();
lockstep::Part preparing_part();
lockstep::Part alone_part();
