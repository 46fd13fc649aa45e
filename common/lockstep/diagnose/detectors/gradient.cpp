// Pitfalls of the gradient's size: kept from the last step, summed, or averaged twice.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {
Verdict gradients_not_zeroed(const Run& run);
Verdict sum_not_mean(const Run& run);
Verdict double_average(const Run& run);
}  // namespace

std::vector<Detector> gradient_detectors() {
  return {
      // Rule: the gradient before an update is the one before the last update plus the mean of the
      // local ones, and not that mean. Not fooled by gradient accumulation, whose local gradient is
      // the sum of several backwards.
      {.slug = "gradients-not-zeroed",
       .equation = Equation::mean_gradient,
       .needs = {"local_gradients", "reduced_gradients"},
       .fewest = 1,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = gradients_not_zeroed},
      // Needs W > 1 ranks, both gradients, losses, and a declared mean loss. Rule: the reduced
      // gradient is W times the mean of the local ones, and the loss is not divided. Not fooled by
      // a loss that is divided by W before a sum (scales W and 1/W), nor by Adam, which hides the
      // scale in the parameters. The same where the loss is the sum over a rank's samples.
      {.slug = "sum-not-mean",
       .equation = Equation::mean_gradient,
       .needs = {"intent", "loss", "local_gradients", "reduced_gradients"},
       .participants = Participants::ranks,
       .accounts_for = {"loss-weight-differs", "gradient-not-the-mean"},
       .detect = sum_not_mean},
      // Rule: loss scale times reduction scale is 1/W: one of the two divided though the other
      // averages already. Not fooled by sum / count (which is the mean once), nor by the part
      // losses of gradient accumulation, which are added up before they are compared.
      {.slug = "double-average",
       .equation = Equation::mean_gradient,
       .needs = {"intent", "loss", "local_gradients", "reduced_gradients"},
       .participants = Participants::ranks,
       .accounts_for = {"loss-weight-differs", "gradient-not-the-mean"},
       .detect = double_average},
  };
}

namespace {
// A way to be wrong, and what it means; told of one step.
struct Wrong {
  std::string meaning;
  bool (*is)(const Scales&, double world_size);
};

// What the two scale detectors have in common: a run is wrong in one of these ways in all its steps.
Verdict judge_scales(const Run& run, const std::vector<Wrong>& ways) {
  if (!declares_mean_loss(run)) return not_triggered(kNoMeanLoss);
  const auto& steps = scales(run);
  if (steps.empty())
    return not_triggered(
        "no step has every rank's losses, and a reduced gradient that is a multiple "
        "of the mean of the local ones");
  const double world_size = run.world_size;
  const auto way = std::find_if(ways.begin(), ways.end(), [&](const Wrong& wrong) {
    return std::all_of(steps.begin(), steps.end(),
                       [&](const Scales& step) { return wrong.is(step, world_size); });
  });
  if (way == ways.end()) return clean();
  const auto& first = steps.front();
  const bool hidden =
      std::all_of(steps.begin(), steps.end(), [](const Scales& step) { return step.hidden; });
  return found({.severity = hidden ? Severity::advice : Severity::violation,
                .ranks = run.numbers,
                .step = first.step,
                .evidence = fmt::format("the reduced gradient is {} times the mean of the ranks' "
                                        "own, and the loss {} times the mean loss: {} ({}){}",
                                        number(first.reduction), number(first.loss), way->meaning,
                                        plural(static_cast<std::int64_t>(steps.size()), "step"),
                                        hidden ? "; clipping has hidden it so far" : "")});
}

// The gradient is this step's mean and the one before, together, or a multiple of both (clipped); and not of
// this step's alone.
bool has_kept(const GradientStep& now, const Vector& reduced, const Vector& before) {
  return std::any_of(now.means.begin(), now.means.end(), [&](const Vector& mean) {
    Vector both(mean);
    for (std::size_t i = 0; i < both.size(); ++i) both[i] += before[i];
    const double off = angle(reduced, both);
    // Rounded to 16 bits, the gradient of one batch again and again is off by the same in each step.
    return off <= kRounding && angle(reduced, mean) > std::max(10 * kRounding, 10 * off);
  });
}

Verdict gradients_not_zeroed(const Run& run) {
  const auto& steps = gradient_steps(run);
  bool looked = false;
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const auto& before = steps[i - 1];
    const auto& now = steps[i];
    if (now.step != before.step + 1 || before.reduced.size() != now.reduced.size()) continue;
    if (now.reduced.front().size() != before.reduced.front().size()) continue;  // another model
    looked = true;
    bool kept = true;
    for (std::size_t r = 0; r < now.reduced.size(); ++r)
      kept = kept && has_kept(now, now.reduced[r], before.reduced[r]);
    if (!kept) continue;
    return found({.ranks = run.numbers,
                  .step = now.step,
                  .evidence = fmt::format(
                      "the gradient before the update is that of step {} plus this step's own, and "
                      "lies {} (relative) from this step's own",
                      before.step, number(distance(now.reduced.front(), now.means.front())))});
  }
  if (!looked) return not_triggered("no two consecutive steps have all gradients recorded");
  return clean();
}

Verdict sum_not_mean(const Run& run) {
  const Wrong over_ranks{
      "summed over the ranks and not divided", [](const Scales& s, double world_size) {
        return is_near(s.reduction, world_size, 0.01) && is_near(s.loss, 1, 0.05);
      }};
  const Wrong over_samples{
      "summed over a rank's samples and not divided", [](const Scales& s, double world_size) {
        // A loss times W makes the mean over the ranks a sum, on purpose.
        const bool tells = s.samples > 1 && !is_near(s.samples, world_size, 0.1);
        return tells && is_near(s.reduction, 1, 0.01) && is_near(s.loss, s.samples, 0.05);
      }};
  return judge_scales(run, {over_ranks, over_samples});
}

Verdict double_average(const Run& run) {
  const Wrong twice{"divided by the number of ranks twice", [](const Scales& s, double world_size) {
                      const double once = 1 / world_size;
                      return (is_near(s.reduction, 1, 0.01) && is_near(s.loss, once, 0.05)) ||
                             (is_near(s.reduction, once, 0.01) && is_near(s.loss, 1, 0.05));
                    }};
  return judge_scales(run, {twice});
}

}  // namespace
}  // namespace lockstep::diagnose
