// Whether NCCL can work here, asked before anything starts: what the machine has against what the ranks need. Free of
// torch and of NCCL.
#pragma once

#include <lockstep/gpu/driver.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::gpu {

// Versions of the headers that this was compiled with; 0: without.
struct BuiltWith {
  int nccl = 0;  // NCCL_VERSION_CODE, 22809 for 2.28.9
  int cuda = 0;  // CUDART_VERSION, 13000 for 13.0
};
BuiltWith built_with();

struct Facts {
  Driver driver;
  BuiltWith built_with;
  int nccl_library = 0;  // ncclGetVersion's; 0: not known, NCCL is not loaded
  std::optional<std::string>
      visible_devices;  // CUDA_VISIBLE_DEVICES, which decides what driver.gpus are
};
Facts facts_here(int nccl_library = 0);

// A rank of this machine, and the GPU that it is to use: cuda:device.
struct LocalRank {
  int local_rank = 0;
  int device = 0;
};

// The device of a local rank on a machine with so many GPUs. With share_gpu the ranks take turns.
int device_of(int local_rank, int gpus, bool share_gpu);
// Those of local ranks 0 to local_world_size - 1.
std::vector<LocalRank> local_ranks(int local_world_size, int gpus, bool share_gpu);

struct Problem {
  std::string what;
  std::string to_do;
};

// Pure: all that keeps NCCL from working for these ranks, none where it can. One that hides others (no driver, no
// GPU) is told alone.
std::vector<Problem> problems(const Facts& facts, const std::vector<LocalRank>& ranks,
                              bool share_gpu);

// Throws UnavailableError that names every problem and what to do, where there is one.
void require_nccl(const Facts& facts, const std::vector<LocalRank>& ranks, bool share_gpu);

// What to tell the user once where ranks share GPUs.
std::string sharing_text(int ranks, int gpus);

}  // namespace lockstep::gpu
