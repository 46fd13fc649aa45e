// What the GPU parts stand on: a rank's GPU, memory on it, and how ranks hand each other NCCL's id.
#pragma once

#include <cuda_runtime_api.h>
#include <lockstep/gpu/kernels/check.h>
#include <lockstep/lesson/lesson.h>

#include <cstdint>
#include <string>
#include <vector>

// Makes this rank's GPU current: cuda:LOCAL_RANK; with --share-gpu perhaps one that several ranks
// have, which NCCL is then told (gpu/nccl_environment.h). Call it before any other call of NCCL.
// Throws UnavailableError where there are too few GPUs.
void use_own_gpu(const lockstep::RankContext& context);

// The same on all ranks: rank 0 asks NCCL for it, and leaves it in the run's folder. Each
// communicator has its own `name`.
ncclUniqueId shared_id(const lockstep::RankContext& context, const std::string& name);

// A stream that waits for no other by itself, not even for the legacy default stream.
class Stream {
 public:
  explicit Stream(std::int64_t number) : number_(number) {
    lockstep::gpu::check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking),
                         "cudaStreamCreateWithFlags");
  }
  ~Stream() { cudaStreamDestroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return handle_; }
  std::int64_t number() const { return number_; }  // as the trace has it

 private:
  cudaStream_t handle_ = nullptr;
  std::int64_t number_;
};

// 1, 2, ... An address would not do: once freed it may be another buffer's, and a reader of the
// trace would take the two for one.
std::uint64_t next_number();

// A CUDA event: a moment of a stream.
class Moment {
 public:
  Moment() {
    lockstep::gpu::check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming),
                         "cudaEventCreateWithFlags");
  }
  ~Moment() { cudaEventDestroy(handle_); }
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;
  operator cudaEvent_t() const { return handle_; }
  std::uint64_t number() const { return number_; }

 private:
  cudaEvent_t handle_ = nullptr;
  std::uint64_t number_ = next_number();
};

// So many floats on the GPU, all of one value: they are there when the constructor returns.
class Floats {
 public:
  Floats(std::int64_t count, float value);
  ~Floats() { cudaFree(data_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() const { return data_; }
  std::int64_t count() const { return count_; }
  std::uint64_t number() const { return number_; }
  // The value that is furthest from `right`. Waits for all of the GPU's streams.
  float worst(float right) const;

 private:
  float* data_ = nullptr;
  std::int64_t count_;
  std::uint64_t number_ = next_number();
};
