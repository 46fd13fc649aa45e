// A GPU that is pretended, for tests where there is none: a library to be preloaded into the ranks of lesson 17. It
// stands in for what they call of CUDA's runtime (runtime.cpp, memory.cpp, kernels.cpp) and of NCCL (nccl.cpp), with
// the order that these promise and no more. What it shows is about the program on the host; nothing has run on a GPU.
//
// A stream is a thread that works off a queue. What the real libraries would answer with garbage, and use of a kind
// that is not pretended, ends the process with a sentence. A function that is not here is the real one's, which finds a
// driver that can do nothing and says so (lessons.PretendedGpuIsWhole: the lesson calls none).
//   LOCKSTEP_FAKE_GPUS             the GPUs there are (fake_cuda.cpp, which must be found as libcuda.so.1)
//   LOCKSTEP_PRETENDED_GPU_FOLDER  where ranks meet, and leave rank_N.used; whoever starts them removes it
//   LOCKSTEP_PRETENDED_GPU_FAILS   RANK CALL NUMBER: what fails, as in "1 ncclAllReduce 3"
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace pretended {

// Says what is wrong, on stderr and in rank_N.refused, and ends the process.
[[noreturn]] void refuse(const std::string& what);
std::filesystem::path folder();

// Whether this call, which this is asked at each time, is the one that is to fail.
bool is_to_fail(const std::string& call);

// What a rank did, and has not given back: it stands in rank_N.used when the process ends in order.
struct Counts {
  std::atomic<bool> used{false};                                         // a device was chosen
  std::atomic<int> kernels{0}, collectives{0};                           // begun
  std::atomic<int> streams{0}, events{0}, buffers{0}, communicators{0};  // there now
};
Counts& counts();

// A moment that comes once.
class Mark {
 public:
  void set();
  void wait();
  bool is_set();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};
using MarkPtr = std::shared_ptr<Mark>;

// What a stream has been given and has not done. Its thread ends when it is closed and empty.
class Queue {
 public:
  static std::shared_ptr<Queue> open();
  void give(std::function<void()> work);
  // Set when all that was given before is done.
  MarkPtr mark();
  void close();

 private:
  void work_off();
  bool has_ended();

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<std::function<void()>> work_;
  bool closed_ = false;
};

std::shared_ptr<Queue> queue_of(cudaStream_t stream);
// Until all streams have done what they were given up to now.
void wait_for_device();
int current_device();

// Where the pretended device keeps the bytes of a device address. The program cannot touch the address itself.
char* memory_of(const void* address, std::size_t bytes);

}  // namespace pretended
