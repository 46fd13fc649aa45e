// A job on two nodes, for the detectors of how jobs are launched.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "expect.h"
#include "hang_job.h"
#include "job.h"

namespace lockstep::simulated {

class Launching : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  int last() const { return GetParam() - 1; }

  // Two nodes of half the ranks each; two ranks are on one.
  int devices() const { return std::max(2, (world_size() + 1) / 2); }
  int local_rank(int rank) const { return rank % devices(); }
  trace::Placement place(int rank, std::int64_t threads = 1) const {
    const int node = rank / devices();
    return {.node = 7u + static_cast<std::uint64_t>(node),
            .local_rank = local_rank(rank),
            .local_world_size = std::min(devices(), world_size() - node * devices()),
            .processors = 2 * devices(),
            .processor_set = 3,
            .threads = threads};
  }
  // The device of this index, where the process sees all of its node.
  trace::Device device(const std::string& moment, int rank, int index) const {
    const bool there = index < devices();
    return {moment, index, devices(), devices(),
            there ? 100u + static_cast<std::uint64_t>(rank / devices() * devices() + index) : 0u};
  }
  // Where it sees its own only.
  trace::Device only_device(int rank, int index) const {
    const auto own = device("chosen", rank, local_rank(rank)).id;
    return {"chosen", index, 1, devices(), index == 0 ? own : 0};
  }
  std::vector<int> ranks_where(const std::function<bool(int)>& is_one) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size(); ++rank)
      if (is_one(rank)) ranks.push_back(rank);
    return ranks;
  }

  // Every rank at its place, what it recorded then, and a collective that all do.
  trace::Trace job(const std::function<std::vector<trace::Payload>(int rank)>& recorded) const {
    HangJob job(world_size());
    for (int rank = 0; rank < world_size(); ++rank)
      for (const auto& payload : recorded(rank)) job.only(rank, payload);
    job.all(call("allreduce", 9));
    return job.play();
  }
};
}  // namespace lockstep::simulated
