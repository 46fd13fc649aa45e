// Batches for lessons that need no sampler.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

// The ids of step k: the k-th `size` samples of the data set, of all ranks together.
std::vector<std::int64_t> global_batch(std::int64_t step, std::int64_t size);

// Every world_size-th of them, from the rank-th on.
std::vector<std::int64_t> share_of(int rank, int world_size, const std::vector<std::int64_t>& ids);

}  // namespace lockstep
