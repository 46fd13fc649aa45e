#include <cmath>
#include <numbers>

#include "../forms.h"

namespace lockstep::testing {
namespace {

constexpr double kUpdates = 60, kWarmup = 10;

// LinearLR from 0.1, then a cosine to 0, of a schedule that is `times` as long; at one step of it.
double rate(double step, double times) {
  const double warmup = times * kWarmup, decay = times * (kUpdates - kWarmup);
  if (step < warmup) return 0.1 + 0.9 * step / warmup;
  return (1 + std::cos(std::numbers::pi * (step - warmup) / decay)) / 2;
}

// The first update at W steps each whose rate is down to 5 %.
double decayed_at(int world_size) {
  double update = 0;
  while (rate(update * world_size, 1) > 0.05) ++update;
  return update / kUpdates;
}

FormCase advised(FormCase form) {
  form.advice = true;
  return form;
}

}  // namespace

std::vector<FormCase> forms_08() {
  return {
      right("correct-scaling"),
      advised(exactly(
          "lr-not-scaled", [](int w) { return 1.0 / w; }, 2, 0.1)),
      right("near-miss-summed-loss"),
      right("correct-adam"),
      advised(at_least("linear-rule-with-adam", 0.15)),
      right("near-miss-accumulation"),
      right("correct-warmup"),
      at_least("no-warmup", 1.3),
      right("near-miss-clipped"),
      right("correct-schedule"),
      exactly("scheduler-stepped-per-rank", decayed_at, 2, 1e-9),
      exactly("schedule-unit-mismatch", always(rate(2, 1)), 1, 1e-9),
      exactly(
          "schedule-length-ignores-world-size", [](int w) { return rate(kUpdates - 1, w); }, 2,
          1e-9),
      right("near-miss-longer-and-stepped-more"),
      right("near-miss-counted-in-samples"),
  };
}

}  // namespace lockstep::testing
