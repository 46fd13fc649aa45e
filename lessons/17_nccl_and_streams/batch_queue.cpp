#include "batch_queue.h"

#include <lockstep/base/error.h>

#include <atomic>
#include <cstring>
#include <thread>

using namespace lockstep;

// A file that posix_fallocate() has just made is zero, and so are the counts.
struct BatchQueue::Head {
  std::int64_t depth, samples;
  std::atomic<std::int64_t> put, taken;
};

namespace {

constexpr std::int64_t kHead = 64, kPixels = 784;
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "it is shared by two processes");

std::size_t bytes_of_inputs(std::int64_t samples) {
  return static_cast<std::size_t>(samples * kPixels) * sizeof(float);
}
std::size_t bytes_of_targets(std::int64_t samples) {
  return static_cast<std::size_t>(samples) * sizeof(std::int64_t);
}
std::int64_t bytes_of_batch(std::int64_t samples) {
  return static_cast<std::int64_t>(bytes_of_inputs(samples) + bytes_of_targets(samples));
}

}  // namespace

std::int64_t bytes_of_queue(std::int64_t depth, std::int64_t samples) {
  return kHead + depth * bytes_of_batch(samples);
}

BatchQueue::BatchQueue(SharedFile memory, std::int64_t depth, std::int64_t samples)
    : memory_(std::move(memory)) {
  head().depth = depth;
  head().samples = samples;
}

BatchQueue::BatchQueue(SharedFile memory) : memory_(std::move(memory)) {}

BatchQueue::Head& BatchQueue::head() const {
  return *static_cast<Head*>(memory_.data());
}

char* BatchQueue::slot(std::int64_t number) const {
  return static_cast<char*>(memory_.data()) + kHead +
         number % head().depth * bytes_of_batch(head().samples);
}

bool BatchQueue::has_room() const {
  return head().put.load(std::memory_order_relaxed) - head().taken.load(std::memory_order_acquire) <
         head().depth;
}

void BatchQueue::put(const TensorData& batch) {
  const auto samples = head().samples;
  const auto number = head().put.load(std::memory_order_relaxed);
  char* to = slot(number);
  std::memcpy(to, batch.inputs.contiguous().const_data_ptr(), bytes_of_inputs(samples));
  std::memcpy(to + bytes_of_inputs(samples), batch.targets.contiguous().const_data_ptr(),
              bytes_of_targets(samples));
  head().put.store(number + 1, std::memory_order_release);
}

TensorData BatchQueue::take(std::chrono::milliseconds patience) {
  const auto samples = head().samples;
  const auto number = head().taken.load(std::memory_order_relaxed);
  const auto until = std::chrono::steady_clock::now() + patience;
  while (head().put.load(std::memory_order_acquire) == number) {
    if (std::chrono::steady_clock::now() > until)
      throw Error("batch " + std::to_string(number) + " does not come");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  char* from = slot(number);
  const TensorData batch{
      torch::from_blob(from, {samples, kPixels}).clone(),
      torch::from_blob(from + bytes_of_inputs(samples), {samples}, torch::kInt64).clone()};
  head().taken.store(number + 1, std::memory_order_release);
  return batch;
}
