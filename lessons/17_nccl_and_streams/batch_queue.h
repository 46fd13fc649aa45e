// A queue of batches between two processes, in memory that both have mapped. One side puts, the
// other takes.
#pragma once

#include <lockstep/train/dataset.h>

#include <chrono>
#include <cstdint>

#include "small_shared_memory.h"

// The size of a queue of `depth` batches, each of `samples` Fashion-MNIST samples.
std::int64_t bytes_of_queue(std::int64_t depth, std::int64_t samples);

class BatchQueue {
 public:
  // An empty one, in memory of bytes_of_queue() that was just made; `depth` is at least 1.
  BatchQueue(SharedFile memory, std::int64_t depth, std::int64_t samples);
  // The other side's.
  explicit BatchQueue(SharedFile memory);

  bool has_room() const;
  void put(const lockstep::TensorData& batch);
  // A copy of the next batch. Throws Error when none has come after `patience`.
  lockstep::TensorData take(std::chrono::milliseconds patience);

 private:
  struct Head;
  Head& head() const;
  char* slot(std::int64_t number) const;

  SharedFile memory_;
};
