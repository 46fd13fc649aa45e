#include <lockstep/record/sketch.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace lockstep::record {
namespace {

// Four numbers worked on at once (GCC's and clang's vector types), by two instructions where there is no wider one.
using Four = double __attribute__((vector_size(4 * sizeof(double))));

std::uint64_t splitmix64(std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// The signs of four neighbouring elements, for each value of their four bits.
constexpr std::array<Four, 16> sign_table() {
  std::array<Four, 16> table{};
  const auto sign = [](std::size_t bits, int bit) { return (bits >> bit & 1) != 0 ? -1.0 : 1.0; };
  for (std::size_t bits = 0; bits < table.size(); ++bits)
    table[bits] = Four{sign(bits, 0), sign(bits, 1), sign(bits, 2), sign(bits, 3)};
  return table;
}
constexpr auto kSigns = sign_table();

constexpr std::size_t kBlock = Projector::kBlock, kLanes = Projector::kLanes;
using Sums = Projector::Sums;

template <class T>
[[gnu::always_inline]] inline void add(const T* data, std::size_t count, std::size_t first,
                                       Sums& sums) {
  std::array<Four, trace::kSketch + 1> now;  // the last: of squares
  std::memcpy(now.data(), sums.data(), sizeof now);
  for (std::size_t block = first; block < first + count; ++block, data += kBlock) {
    std::array<std::uint64_t, trace::kSketch> bits;
    for (std::size_t p = 0; p < bits.size(); ++p) bits[p] = splitmix64(block * bits.size() + p);
    for (std::size_t j = 0; j < kBlock; j += kLanes) {
      const Four four{static_cast<double>(data[j]), static_cast<double>(data[j + 1]),
                      static_cast<double>(data[j + 2]), static_cast<double>(data[j + 3])};
#pragma GCC unroll 4  // kSketch, so that the sums stay in registers
      for (std::size_t p = 0; p < bits.size(); ++p) now[p] += kSigns[bits[p] >> j & 15] * four;
      now.back() += four * four;
    }
  }
  std::memcpy(sums.data(), now.data(), sizeof now);
}

// The same numbers on every processor: a multiplication and an addition stay two.
#if defined(__x86_64__)
template <class T>
[[gnu::target("avx2")]] void add_by_wide_ones(const T* data, std::size_t count, std::size_t first,
                                              Sums& sums) {
  add(data, count, first, sums);
}
const bool has_wide_ones = __builtin_cpu_supports("avx2");
#endif

template <class T>
void add_blocks(const T* data, std::size_t count, std::size_t first, Sums& sums) {
#if defined(__x86_64__)
  if (has_wide_ones) return add_by_wide_ones(data, count, first, sums);
#endif
  add(data, count, first, sums);
}

double total(const std::array<double, kLanes>& sums) {
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

template <class T>
void Projector::add_all(const T* data, std::size_t size) {
  const auto fills = std::min(size, (kBlock - rest_size_) % kBlock);
  std::copy(data, data + fills, rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_));
  rest_size_ += fills;
  if (rest_size_ == kBlock) {
    add_blocks(rest_.data(), 1, block_++, sums_);
    rest_ = {};
    rest_size_ = 0;
  }
  const auto whole = (size - fills) / kBlock;
  add_blocks(data + fills, whole, block_, sums_);
  block_ += whole;
  const auto* left = data + fills + whole * kBlock;
  if (left == data + size) return;
  rest_size_ = static_cast<std::size_t>(data + size - left);
  std::copy(left, data + size, rest_.begin());
}

void Projector::add(const float* data, std::size_t size) {
  add_all(data, size);
}
void Projector::add(const double* data, std::size_t size) {
  add_all(data, size);
}

Projections Projector::projections() const {
  auto sums = sums_;
  add_blocks(rest_.data(), 1, block_, sums);  // zeros add nothing
  Projections projections;
  for (std::size_t p = 0; p < projections.values.size(); ++p)
    projections.values[p] = total(sums[p]);
  projections.sum_of_squares = total(sums.back());
  return projections;
}

}  // namespace lockstep::record
