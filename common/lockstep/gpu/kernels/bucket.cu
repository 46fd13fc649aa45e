#include <cuda_bf16.h>
#include <lockstep/gpu/kernels/bucket.h>
#include <lockstep/gpu/kernels/bucket_plan.h>
#include <lockstep/gpu/kernels/check.h>

namespace lockstep::gpu {
namespace {

constexpr int kThreads = 256;

template <class T>
struct alignas(16) Vector {
  T values[16 / sizeof(T)];
};

struct Scale {
  float factor;
  __device__ float operator()(float value) const { return value * factor; }
  __device__ __nv_bfloat16 operator()(__nv_bfloat16 value) const {
    return __float2bfloat16_rn(__bfloat162float(value) * factor);
  }
};

struct Keep {
  template <class T>
  __device__ T operator()(T value) const {
    return value;
  }
};

// By all threads of a block together.
template <class T, class Change>
__device__ void copy(const T* __restrict__ from, T* __restrict__ to, std::int64_t count,
                     Change change) {
  const auto split = alignment_split(reinterpret_cast<std::uint64_t>(from),
                                     reinterpret_cast<std::uint64_t>(to), count, sizeof(T));
  for (std::int64_t i = threadIdx.x; i < split.head; i += kThreads) to[i] = change(from[i]);

  const auto* vectors = reinterpret_cast<const Vector<T>*>(from + split.head);
  auto* changed = reinterpret_cast<Vector<T>*>(to + split.head);
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < split.vectors; i += kThreads) {
    Vector<T> vector = vectors[i];
#pragma unroll
    for (auto& value : vector.values) value = change(value);
    changed[i] = vector;
  }

  const auto done = count - split.tail;
  for (std::int64_t i = done + threadIdx.x; i < count; i += kThreads) to[i] = change(from[i]);
}

// Tensors to the bucket, or back. Each block takes chunk after chunk, until there are none.
template <class T, bool to_bucket, class Change>
__global__ void __launch_bounds__(kThreads)
    move(const __grid_constant__ Table table, T* bucket, Change change) {
  for (std::int64_t number = blockIdx.x; number < table.chunks; number += gridDim.x) {
    const auto piece = chunk(table, number);
    const auto& span = table.span[piece.span];
    auto* in_tensor = reinterpret_cast<T*>(span.tensor) + piece.begin;
    auto* in_bucket = bucket + span.offset + piece.begin;
    if constexpr (to_bucket)
      copy(in_tensor, in_bucket, piece.count, change);
    else
      copy(in_bucket, in_tensor, piece.count, change);
  }
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return count;
}

template <class T, bool to_bucket, class Change>
void launch(const Tensors& tensors, T* bucket, Change change, cudaStream_t stream) {
  std::vector<std::uint64_t> addresses;
  for (auto* data : tensors.data) addresses.push_back(reinterpret_cast<std::uint64_t>(data));
  const auto tables = plan(addresses, tensors.sizes);
  const int available = tables.empty() ? 0 : multiprocessors();
  for (const auto& table : tables) {
    move<T, to_bucket>
        <<<grid_size(table.chunks, available), kThreads, 0, stream>>>(table, bucket, change);
    check(cudaGetLastError(), to_bucket ? "the flatten_and_scale kernel" : "the unflatten kernel");
  }
}

}  // namespace

void flatten_and_scale(const Tensors& gradients, void* bucket, float scale, cudaStream_t stream) {
  if (gradients.dtype == Dtype::float32)
    launch<float, true>(gradients, static_cast<float*>(bucket), Scale{scale}, stream);
  else
    launch<__nv_bfloat16, true>(gradients, static_cast<__nv_bfloat16*>(bucket), Scale{scale},
                                stream);
}

// Values are moved as they are: as numbers of the same size, of which no bit changes.
void unflatten(const void* bucket, const Tensors& gradients, cudaStream_t stream) {
  auto* from = const_cast<void*>(bucket);
  if (gradients.dtype == Dtype::float32)
    launch<std::uint32_t, false>(gradients, static_cast<std::uint32_t*>(from), Keep{}, stream);
  else
    launch<std::uint16_t, false>(gradients, static_cast<std::uint16_t*>(from), Keep{}, stream);
}

}  // namespace lockstep::gpu
