// What NCCL needs of this machine and of all ranks together, asked before it is called.
#include <lockstep/base/error.h>
#include <lockstep/dist/backends.h>
#include <lockstep/gpu/nccl_environment.h>
#include <lockstep/gpu/require_nccl.h>

#include <iostream>
#include <map>

namespace lockstep::detail {
namespace {

std::string key_of(int rank) {
  return "gpu/" + std::to_string(rank);
}

void refuse_a_gpu_of_two(c10d::Store& store, int world_size) {
  std::map<std::string, int> taken;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto uuid = store.get_to_str(key_of(rank));
    if (uuid.empty()) continue;  // a driver that does not say
    const auto [first, is_new] = taken.emplace(uuid, rank);
    if (!is_new)
      throw UnavailableError(
          "backend nccl: ranks " + std::to_string(first->second) + " and " + std::to_string(rank) +
          " have the same GPU, " + uuid +
          ", and NCCL needs one a rank: check LOCAL_RANK and CUDA_VISIBLE_DEVICES of both; or let "
          "them share it for a test of results (InitOptions::share_gpu)");
  }
}

}  // namespace

int require_nccl(const InitOptions& options, const Ranks& ranks) {
  load_nccl();
  const auto facts = gpu::facts_here(nccl_version());
  const int gpus = static_cast<int>(facts.driver.gpus.size());
  const int device = gpu::device_of(ranks.local_rank, gpus, options.share_gpu);
  // Ranks that the caller has numbered, without saying where each is, are on this machine.
  const int here = ranks.local_world_size > 0 ? ranks.local_world_size : ranks.world_size;
  // Every rank of this machine refuses where one lacks its GPU, or the others would wait for it. Of a device that
  // the caller has named only this rank knows.
  const auto asked = options.local_rank >= 0
                         ? std::vector<gpu::LocalRank>{{ranks.local_rank, device}}
                         : gpu::local_ranks(here, gpus, options.share_gpu);
  gpu::require_nccl(facts, asked, options.share_gpu);
  require_torch_with_cuda();
  if (options.share_gpu && ranks.rank == 0 && here > gpus)
    std::cerr << gpu::sharing_text(here, gpus) << std::endl;
  return device;
}

void set_nccl_environment(const BackendRequest& request) {
  gpu::set_nccl_environment({request.ranks.rank, request.loopback, request.share_gpu,
                             nccl_version(), request.ranks.local_world_size, gpu::gpus_here()});
}

void meet_with_gpus(c10d::Store& store, const Ranks& ranks, const InitOptions& options) {
  const auto gpus = gpu::ask_driver().gpus;
  store.set(key_of(ranks.rank), gpus.at(static_cast<std::size_t>(ranks.device)).uuid);
  meet(store, ranks.rank, ranks.world_size, options.timeout);
  if (!options.share_gpu) refuse_a_gpu_of_two(store, ranks.world_size);
}

}  // namespace lockstep::detail
