// The library lockstep_nccl: all that needs torch_cuda. Loaded by nccl_loader.cpp, linked by
// nothing.
#include <c10/cuda/CUDAFunctions.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/backends.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace lockstep::detail {
namespace {

void check_gpus(const Ranks& ranks) {
  const int there = c10::cuda::device_count();
  // Every rank of this machine refuses, the ones that would have a GPU too: they would wait for the
  // others.
  const int needed = std::max(ranks.local_rank + 1, ranks.local_world_size);
  if (there >= needed) return;
  throw UnavailableError("backend nccl: " + std::to_string(needed) +
                         " ranks on this machine need a GPU each, and it has " +
                         std::to_string(there) + " (rank " + std::to_string(ranks.rank) +
                         " was to use cuda:" + std::to_string(ranks.local_rank) +
                         "). Start at most as many ranks as GPUs, or use the backend gloo");
}

BackendPtr make(const BackendRequest& request) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(request.ranks.local_rank));
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  options->group_name = "0";
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.ranks.rank,
                                                     request.ranks.world_size, options);
}

}  // namespace
}  // namespace lockstep::detail

extern "C" {

__attribute__((visibility("default"))) void lockstep_nccl_require_gpus(
    const lockstep::detail::Ranks& ranks) {
  lockstep::detail::check_gpus(ranks);
}

__attribute__((visibility("default"))) void lockstep_nccl_make(
    const lockstep::detail::BackendRequest& request, lockstep::BackendPtr& backend) {
  backend = lockstep::detail::make(request);
}

}  // extern "C"
