// How tensors and a flat bucket are cut into pieces for a kernel: pure, and the same on the CPU and on the GPU. No
// CUDA here.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::gpu {

// Elements that a block of threads takes at a time.
inline constexpr std::int64_t kChunk = 16384;
// Tensors of one launch: its table is a kernel's parameter, of which there are 32,764 bytes since CUDA 12.1 (and sm_70).
inline constexpr int kTensorsPerLaunch = 1000;

// A tensor and its place in the bucket, in elements. Not empty.
struct Span {
  std::uint64_t tensor = 0;  // the address of its first element
  std::int64_t offset = 0;   // in the bucket
  std::int64_t count = 0;
};

// What one launch moves: chunk number c belongs to the last span whose first chunk is not behind c.
struct Table {
  int spans = 0;
  std::int64_t chunks = 0;  // of all spans
  Span span[kTensorsPerLaunch];
  std::int64_t first_chunk[kTensorsPerLaunch];
};

// A chunk of a table: so many elements from `begin` of its span on.
struct Chunk {
  int span = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Tables for these tensors, one behind the other in the bucket. Empty ones have no place in it. Throws UsageError
// for as many addresses as there are not sizes, and for a negative size.
std::vector<Table> plan(const std::vector<std::uint64_t>& tensors,
                        const std::vector<std::int64_t>& sizes);

// By binary search; 0 <= number < table.chunks.
constexpr Chunk chunk(const Table& table, std::int64_t number) {
  int low = 0, high = table.spans;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_chunk[middle] <= number ? low : high) = middle;
  }
  const std::int64_t begin = (number - table.first_chunk[low]) * kChunk;
  const std::int64_t rest = table.span[low].count - begin;
  return {low, begin, rest < kChunk ? rest : kChunk};
}

// How a copy of `count` elements of `size` bytes between two addresses is cut: single elements until both are at a
// multiple of 16 bytes, vectors of 16, and single ones to the end. All single where the two never are together.
struct Split {
  std::int64_t head = 0;     // elements
  std::int64_t vectors = 0;  // of 16 bytes
  std::int64_t tail = 0;     // elements
};
constexpr Split alignment_split(std::uint64_t from, std::uint64_t to, std::int64_t count,
                                std::int64_t size) {
  const auto past = static_cast<std::int64_t>(from % 16);
  if (from % 16 != to % 16 || past % size != 0) return {count, 0, 0};
  const std::int64_t to_go = (16 - past) % 16 / size;
  const std::int64_t head = to_go < count ? to_go : count;
  const std::int64_t per_vector = 16 / size;
  const std::int64_t vectors = (count - head) / per_vector;
  return {head, vectors, count - head - vectors * per_vector};
}

// Blocks to launch: not more than there are chunks, and several times as many as run at once, so that a multiprocessor
// that is done takes the next.
constexpr int grid_size(std::int64_t chunks, int multiprocessors) {
  const std::int64_t full = 32LL * multiprocessors;
  return static_cast<int>(chunks < full ? chunks : full);
}

}  // namespace lockstep::gpu
