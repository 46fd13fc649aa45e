// A kernel that does nothing, for a while: what comes behind it on its stream comes late for certain.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>

namespace lockstep::gpu {

inline constexpr std::chrono::seconds kLongestDelay{10};

// Gives `stream` nothing to do for that long, by the GPU's clock; the GPU's other streams go on. Returns at once.
// Throws UsageError for less than nothing and for more than kLongestDelay, CudaError where the launch fails.
void delay(std::chrono::nanoseconds time, cudaStream_t stream);

}  // namespace lockstep::gpu
