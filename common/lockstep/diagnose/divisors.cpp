#include <lockstep/diagnose/divisors.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {

std::map<std::int64_t, Divisors> gather(const Run& run) {
  std::map<std::int64_t, Divisors> steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    std::map<std::int64_t, double> scales;
    for (const auto& at : run.ranks[r]->latest<trace::ScaledStep>())
      scales[at.step] = at.event->scale;
    for (const auto& at : run.ranks[r]->latest<trace::LossDivisors>()) {
      auto& ranks = steps[at.step];
      ranks.resize(run.ranks.size());
      const auto scale = scales.find(at.step);
      for (const double divisor : at.event->values)
        ranks[r].push_back(divisor * (scale == scales.end() ? 1 : scale->second));
    }
  }
  std::erase_if(steps, [](const auto& step) {
    const auto& ranks = step.second;
    return std::any_of(ranks.begin(), ranks.end(),
                       [&](const auto& rank) { return rank.size() != ranks.front().size(); });
  });
  return steps;
}

}  // namespace

const std::map<std::int64_t, Divisors>& divisors_by_step(const Run& run) {
  return run.once(gather);
}

}  // namespace lockstep::diagnose
