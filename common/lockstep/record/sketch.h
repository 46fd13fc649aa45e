// A tensor in a few numbers: fixed random projections, linear, so that sums can be checked after
// the fact.
//
// Projection p of a vector x is sum_i s_p(i) x_i with signs s_p(i) of +1 or -1. The signs are bits
// 4 j + p of splitmix64(i / 16), where j = i % 16: they depend on the element's index alone, so
// every rank and every run uses the same ones. For independent signs the expected square of a
// projection is the square of the norm (Alon, Matias and Szegedy 1996).
#pragma once

#include <lockstep/trace/event.h>

#include <array>
#include <cstddef>

namespace lockstep::record {

struct Projections {
  std::array<double, trace::kSketch> values{};
  double sum_of_squares = 0;
};

// Of `size` numbers at `data`, accumulated in float64.
Projections project(const float* data, std::size_t size);
Projections project(const double* data, std::size_t size);

}  // namespace lockstep::record
