// Gradients into one flat bucket, already divided by the number of ranks, and back: what a gradient engine does around
// an all-reduce, as one kernel instead of a copy and a multiplication for each tensor.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace lockstep::gpu {

enum class Dtype { float32, bfloat16 };

// Tensors in the current device's memory: contiguous, of one dtype, of any size (also none) and any alignment that the
// dtype has. Their places in a bucket are one behind the other, without gaps.
struct Tensors {
  std::vector<void*> data;
  std::vector<std::int64_t> sizes;  // elements
  Dtype dtype = Dtype::float32;
};

// bucket[i] = gradient[i] * scale, by `stream`; returns at once. With scale = 1 / ranks, a sum over the ranks' buckets
// is the mean. Rounds as ATen's mul does: in float32 one multiplication; a bfloat16 is multiplied as a float32 and
// rounded to the nearest even. The bucket holds as many elements as all tensors, and overlaps none. The list may go
// when the call returns, the memory not before the stream has come past. Throws UsageError for lists that do not fit,
// CudaError where a launch fails.
void flatten_and_scale(const Tensors& gradients, void* bucket, float scale, cudaStream_t stream);

// The way back, bit by bit: gradient[i] = bucket[i]. Returns at once, and throws, as flatten_and_scale does.
void unflatten(const void* bucket, const Tensors& gradients, cudaStream_t stream);

}  // namespace lockstep::gpu
