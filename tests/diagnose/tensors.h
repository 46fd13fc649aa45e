// Sums and means of several tensors at a time.
#pragma once

#include <vector>

#include "job.h"

namespace lockstep::simulated {

using Tensors = std::vector<Values>;

// sum += factor * term; a sum that has fewer tensors gets the others as zeros first.
inline void add(Tensors& sum, const Tensors& term, double factor) {
  for (std::size_t t = sum.size(); t < term.size(); ++t) sum.emplace_back(term[t].size(), 0.0);
  for (std::size_t t = 0; t < sum.size(); ++t)
    for (std::size_t i = 0; i < sum[t].size(); ++i) sum[t][i] += factor * term[t][i];
}

inline Tensors mean(const std::vector<Tensors>& all) {
  Tensors sum;
  for (const auto& one : all) add(sum, one, 1.0 / static_cast<double>(all.size()));
  return sum;
}

}  // namespace lockstep::simulated
