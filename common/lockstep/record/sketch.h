// A tensor in a few numbers: fixed random projections, linear, so that sums can be checked after
// the fact.
//
// Projection p of a vector x is sum_i s_p(i) x_i with signs s_p(i) of +1 or -1. Element i is number
// j = i % 64 of block b = i / 64, and its sign is -1 where bit j of splitmix64(kSketch b + p) is
// set: a sign depends on the element's index alone, so every rank and every run uses the same ones.
// For independent signs the expected square of a projection is the square of the norm (Alon, Matias
// and Szegedy 1996). The order of the additions is fixed too: in one build equal bytes give equal
// numbers.
#pragma once

#include <lockstep/trace/event.h>

#include <array>
#include <cstddef>

namespace lockstep::record {

struct Projections {
  std::array<double, trace::kSketch> values{};
  double sum_of_squares = 0;
};

// Of all numbers that are added, accumulated in float64, in one pass (1.6 million float32: 0.8 ms). The same numbers in
// the same order give the same, however they are cut into pieces.
class Projector {
 public:
  void add(const float* data, std::size_t size);
  void add(const double* data, std::size_t size);
  Projections projections() const;

  static constexpr std::size_t kBlock =
      64;  // elements that share one random word for each projection
  static constexpr std::size_t kLanes = 4;  // sums that need not wait for each other
  using Sums = std::array<std::array<double, kLanes>, trace::kSketch + 1>;  // the last: of squares

 private:
  template <class T>
  void add_all(const T* data, std::size_t size);

  Sums sums_{};
  std::size_t block_ = 0;              // the next
  std::array<double, kBlock> rest_{};  // of the last piece: less than a block, then zeros
  std::size_t rest_size_ = 0;
};

}  // namespace lockstep::record
