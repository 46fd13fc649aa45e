// Figures from repeated measurements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

namespace lockstep::benchmark {

// The median, and the order statistics around it that hold it with a probability of at least 95 %.
inline nlohmann::json median_with_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  double term = std::pow(0.5, static_cast<double>(n)), below = term;  // P(Binomial(n, 1/2) <= k)
  std::size_t k = 0;
  while (k + 1 < n / 2) {
    const double next = term * static_cast<double>(n - k) / static_cast<double>(k + 1);
    if (below + next > 0.025) break;
    term = next;
    below += next;
    ++k;
  }
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {{"median", median}, {"low", values[k]}, {"high", values[n - 1 - k]}};
}

inline nlohmann::json ratios(const std::vector<double>& values, const std::vector<double>& base) {
  std::vector<double> each;
  for (std::size_t i = 0; i < values.size(); ++i) each.push_back(values[i] / base[i]);
  return median_with_interval(std::move(each));
}

// Processes that ran or wanted to, over the last minute; the benchmark's own ranks are among them.
inline double load_average() {
  double load = -1;
  getloadavg(&load, 1);
  return load;
}

}  // namespace lockstep::benchmark
