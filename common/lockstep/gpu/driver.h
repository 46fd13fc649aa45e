// What this machine's NVIDIA driver says. It is asked through dlopen of libcuda.so.1: nothing here links it, and a
// program that does not ask has not loaded it. Free of torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::gpu {

struct Gpu {
  std::string name;
  std::string uuid;  // as nvidia-smi writes it, "GPU-..."; a part of a GPU (MIG) has one of its own
  std::uint64_t bytes = 0;  // of its memory
  int major = 0;            // compute capability, 9.0 for an H200
  int minor = 0;
};

struct Driver {
  std::string missing;    // why it cannot be asked; empty where it can
  int cuda_version = 0;   // the newest CUDA that it runs: 13000 is 13.0; 0: it does not say
  std::vector<Gpu> gpus;  // those that this process sees, in CUDA's order
};

// cuInit and queries. No context is made, so no memory of a GPU is taken and no process of it is counted:
// a launcher may ask. CUDA reads CUDA_VISIBLE_DEVICES now, once and for all of this process. Never throws for
// what the machine lacks.
Driver ask_driver();

// How many of them. It is what this process sees, after CUDA_VISIBLE_DEVICES; usage.h has all of the machine's, and
// torch::cuda::device_count() those that torch can drive: none where its CUDA library is not loaded.
int gpus_here();

}  // namespace lockstep::gpu
