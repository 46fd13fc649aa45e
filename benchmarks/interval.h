// Figures from repeated measurements.
#pragma once

#include <algorithm>
#include <array>
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

// Milliseconds of a turn of each kind of work, [kind][round]. In a round each kind has `turns` turns, in an order that
// rotates: what else the machine does meets all kinds.
template <std::size_t kKinds, class Turn>
std::array<std::vector<double>, kKinds> in_turns(int rounds, int turns, const Turn& milliseconds) {
  std::array<std::vector<double>, kKinds> times;
  for (int round = 0; round < rounds; ++round) {
    std::array<double, kKinds> total{};
    for (int turn = 0; turn < turns; ++turn)
      for (std::size_t i = 0; i < kKinds; ++i) {
        const auto kind = (i + static_cast<std::size_t>(round + turn)) % kKinds;
        total[kind] += milliseconds(kind);
      }
    for (std::size_t kind = 0; kind < kKinds; ++kind) times[kind].push_back(total[kind] / turns);
  }
  return times;
}

// Processes that ran or wanted to, over the last minute; the benchmark's own ranks are among them.
inline double load_average() {
  double load = -1;
  getloadavg(&load, 1);
  return load;
}

}  // namespace lockstep::benchmark
