// Who uses this machine's GPUs, and how much of their memory: what NVML says (libnvidia-ml.so.1, through dlopen).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::gpu {

struct GpuProcess {
  int pid = 0;  // as the machine counts them: inside a container it may be no process that one sees
  std::optional<std::uint64_t> bytes;  // of the GPU's memory; nothing where the driver does not say
};

struct Usage {
  std::string uuid;  // Gpu::uuid
  std::uint64_t used_bytes = 0;
  std::uint64_t total_bytes = 0;
  std::vector<GpuProcess>
      processes;  // with a CUDA context on it: one that has done no work there is a stray one
};

// Of all GPUs of the machine, whatever CUDA_VISIBLE_DEVICES says, in the order of their PCI bus. Nothing where
// there is no NVML. Makes no context.
std::optional<std::vector<Usage>> ask_usage();

}  // namespace lockstep::gpu
