// The random generators' states, as Python's torch.get_rng_state() gives them.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lockstep {

// A byte tensor on the CPU, 5056 bytes for a CPU generator. Without an argument: of torch's default
// one, which torch::randn and dropout on the CPU draw from.
at::Tensor get_rng_state();
at::Tensor get_rng_state(const at::Generator& generator);

// The generator goes on where the state was taken. Throws Error for what is no such state. Each rank
// has a generator of its own: a checkpoint saved by rank 0 holds rank 0's.
void set_rng_state(const at::Tensor& state);
void set_rng_state(at::Generator generator, const at::Tensor& state);

}  // namespace lockstep
