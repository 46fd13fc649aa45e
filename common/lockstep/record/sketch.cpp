#include <lockstep/record/sketch.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace lockstep::record {
namespace {

constexpr std::size_t kBlock = 64;  // elements that share one random word for each projection

// Two numbers worked on at once (GCC's and clang's vector types): what every x86-64 and ARM64 has.
// Two pairs at a time give four sums that need not wait for each other.
constexpr std::size_t kLanes = 4;
using Pair = double __attribute__((vector_size(2 * sizeof(double))));
struct Four {
  Pair low{}, high{};
};

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
    table[bits] = {Pair{sign(bits, 0), sign(bits, 1)}, Pair{sign(bits, 2), sign(bits, 3)}};
  return table;
}
constexpr auto kSigns = sign_table();

struct Sums {
  std::array<Four, trace::kSketch> projections{};
  Four squares{};
};

template <class T>
inline void add_block(const T* data, std::size_t block, Sums& sums) {
  std::array<std::uint64_t, trace::kSketch> bits;
  for (std::size_t p = 0; p < bits.size(); ++p) bits[p] = splitmix64(block * bits.size() + p);
  for (std::size_t j = 0; j < kBlock; j += kLanes) {
    const Pair low{static_cast<double>(data[j]), static_cast<double>(data[j + 1])};
    const Pair high{static_cast<double>(data[j + 2]), static_cast<double>(data[j + 3])};
#pragma GCC unroll 4  // kSketch, so that the sums stay in registers
    for (std::size_t p = 0; p < bits.size(); ++p) {
      const Four& signs = kSigns[bits[p] >> j & 15];
      sums.projections[p].low += signs.low * low;
      sums.projections[p].high += signs.high * high;
    }
    sums.squares.low += low * low;
    sums.squares.high += high * high;
  }
}

double total(const Four& sums) {
  return (sums.low[0] + sums.low[1]) + (sums.high[0] + sums.high[1]);
}

template <class T>
Projections project_all(const T* data, std::size_t size) {
  Sums sums;
  const std::size_t whole = size / kBlock;
  for (std::size_t block = 0; block < whole; ++block) add_block(data + block * kBlock, block, sums);
  std::array<T, kBlock> rest{};  // zeros add nothing
  std::copy(data + whole * kBlock, data + size, rest.begin());
  add_block(rest.data(), whole, sums);
  Projections projections;
  for (std::size_t p = 0; p < projections.values.size(); ++p)
    projections.values[p] = total(sums.projections[p]);
  projections.sum_of_squares = total(sums.squares);
  return projections;
}

}  // namespace

Projections project(const float* data, std::size_t size) {
  return project_all(data, size);
}
Projections project(const double* data, std::size_t size) {
  return project_all(data, size);
}

}  // namespace lockstep::record
