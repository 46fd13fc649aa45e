#include <lockstep/record/sketch.h>

#include <cstdint>

namespace lockstep::record {
namespace {

constexpr std::size_t kBlock = 16;  // elements per 64-bit word of signs: kSketch bits each

std::uint64_t splitmix64(std::uint64_t index) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// Four elements' signs for projection p, as the lanes of a table: 1 - 2 bit.
constexpr std::array<std::array<double, trace::kSketch>, 16> sign_table() {
  std::array<std::array<double, trace::kSketch>, 16> table{};
  for (std::size_t bits = 0; bits < table.size(); ++bits)
    for (std::size_t p = 0; p < trace::kSketch; ++p)
      table[bits][p] = (bits >> p & 1) != 0 ? -1.0 : 1.0;
  return table;
}
constexpr auto kSigns = sign_table();

template <class T>
void add_block(const T* data, std::size_t count, std::uint64_t signs, Projections& sum) {
  auto values = sum.values;
  double squares = sum.sum_of_squares;
  for (std::size_t j = 0; j < count; ++j, signs >>= trace::kSketch) {
    const auto x = static_cast<double>(data[j]);
    const auto& sign = kSigns[signs & 15];
    for (std::size_t p = 0; p < trace::kSketch; ++p) values[p] += sign[p] * x;
    squares += x * x;
  }
  sum.values = values;
  sum.sum_of_squares = squares;
}

template <class T>
Projections project_all(const T* data, std::size_t size) {
  // Two accumulators, so that one block's additions need not wait for the last one's.
  Projections even, odd;
  const std::size_t blocks = size / kBlock;
  for (std::size_t block = 0; block < blocks; ++block)
    add_block(data + block * kBlock, kBlock, splitmix64(block), block % 2 == 0 ? even : odd);
  add_block(data + blocks * kBlock, size % kBlock, splitmix64(blocks), even);
  for (std::size_t p = 0; p < trace::kSketch; ++p) even.values[p] += odd.values[p];
  even.sum_of_squares += odd.sum_of_squares;
  return even;
}

}  // namespace

Projections project(const float* data, std::size_t size) {
  return project_all(data, size);
}
Projections project(const double* data, std::size_t size) {
  return project_all(data, size);
}

}  // namespace lockstep::record
