// The CPU as several devices, one for each replica.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace lockstep {

inline std::vector<c10::Device> cpus(std::size_t count) {
  return std::vector<c10::Device>(count, c10::Device(c10::kCPU));
}

}  // namespace lockstep
