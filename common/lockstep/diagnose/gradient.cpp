// Pitfalls of the gradient's size: kept from the last step, summed, or averaged twice.
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

namespace lockstep::diagnose {
namespace {

const char* const kNoGradients = "no step has every rank's local and reduced gradients";

struct Scales {
  std::int64_t step = 0;
  double reduction = 1;
  double loss = 1;
};

std::vector<Scales> scales(const Run& run) {
  std::vector<Scales> result;
  for (const auto& step : gradient_steps(run)) {
    const auto reduction = reduction_scale(step, kRounding);
    const auto loss = loss_scale(run, step.step);
    if (reduction && loss) result.push_back({step.step, *reduction, *loss});
  }
  return result;
}

// What the two scale detectors have in common; `wrong` judges one step.
Verdict judge_scales(const trace::Trace& trace, const char* slug, const std::string& meaning,
                     bool (*wrong)(const Scales&, double world_size)) {
  const Run run(trace);
  if (run.devices) return not_triggered("no ranks here reduce gradients with each other");
  if (run.world_size < 2) return not_applicable("one rank has nothing to average");
  if (!run.complete) return not_triggered("a rank left no trace");
  if (!declares_mean_loss(run)) return not_triggered("the run does not declare a mean loss");
  const auto steps = scales(run);
  if (steps.empty())
    return not_triggered(
        "no step has every rank's losses, and a reduced gradient that is a multiple "
        "of the mean of the local ones");
  const double world_size = run.world_size;
  for (const auto& step : steps)
    if (!wrong(step, world_size)) return clean();
  const auto& first = steps.front();
  return found({.pitfall = slug,
                .ranks = run.numbers,
                .step = first.step,
                .evidence = "the reduced gradient is " + number(first.reduction) +
                            " times the mean of the ranks' own, and the loss " +
                            number(first.loss) + " times the mean loss: " + meaning + " (" +
                            plural(static_cast<std::int64_t>(steps.size()), "step") + ")"});
}

// The gradient is this step's mean and the one before, together, or a multiple of both (clipped); and not of
// this step's alone.
bool has_kept(const GradientStep& now, const Vector& reduced, const Vector& before) {
  return std::any_of(now.means.begin(), now.means.end(), [&](const Vector& mean) {
    Vector both(mean);
    for (std::size_t i = 0; i < both.size(); ++i) both[i] += before[i];
    return angle(reduced, both) <= kRounding && angle(reduced, mean) > kRounding;
  });
}

}  // namespace

Verdict gradients_not_zeroed(const trace::Trace& trace) {
  const Run run(trace);
  const auto steps = gradient_steps(run);
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
    return found({.pitfall = "gradients-not-zeroed",
                  .ranks = run.numbers,
                  .step = now.step,
                  .evidence = "the gradient before the update is that of step " +
                              std::to_string(before.step) + " plus this step's own, and lies " +
                              number(distance(now.reduced.front(), now.means.front())) +
                              " (relative) from this step's own"});
  }
  if (!looked) return not_triggered("no two consecutive steps have all gradients recorded");
  return clean();
}

Verdict sum_not_mean(const trace::Trace& trace) {
  return judge_scales(trace, "sum-not-mean", "summed over the ranks and not divided",
                      [](const Scales& s, double world_size) {
                        return is_near(s.reduction, world_size, 0.01) && is_near(s.loss, 1, 0.05);
                      });
}

Verdict double_average(const trace::Trace& trace) {
  return judge_scales(trace, "double-average", "divided by the number of ranks twice",
                      [](const Scales& s, double world_size) {
                        const double once = 1 / world_size;
                        return (is_near(s.reduction, 1, 0.01) && is_near(s.loss, once, 0.05)) ||
                               (is_near(s.reduction, once, 0.01) && is_near(s.loss, 1, 0.05));
                      });
}

namespace {

// The ranks go by other gradients, and are apart after the update or it was not recorded: whatever
// changed the gradients on the way, it was not the same everywhere.
bool ranks_go_apart(const Run& run, const GradientStep& step, double tolerance) {
  const auto& first = step.reduced.front();
  if (std::all_of(step.reduced.begin(), step.reduced.end(),
                  [&](const Vector& reduced) { return distance(reduced, first) <= tolerance; }))
    return false;
  std::vector<const std::vector<trace::Summary>*> replicas;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Parameters>())
      if (at.step == step.step) replicas.push_back(&at.event->values);
  return replicas.size() != run.ranks.size() ||
         std::any_of(replicas.begin(), replicas.end(), [&](const auto* replica) {
           return first_difference(*replica, *replicas.front()) >= 0;
         });
}

}  // namespace

namespace {

// Every rank went by its own gradient once, and by one that was reduced before and after it.
bool is_unreduced_once(const std::vector<GradientStep>& steps, const GradientStep& step) {
  const auto was_reduced = [](const GradientStep& other) { return !is_unreduced(other); };
  const auto at = std::find_if(steps.begin(), steps.end(),
                               [&](const auto& other) { return other.step == step.step; });
  return std::any_of(steps.begin(), at, was_reduced) && std::any_of(at, steps.end(), was_reduced);
}

// No rank can have learned of another's gradient: all that went between them in an update and is as large as the
// parameters is broadcasts.
bool only_broadcasts(const Run& run) {
  bool any = false;
  for (const auto* rank : run.ranks) {
    const auto models = rank->all<trace::Model>();
    if (models.empty()) return false;
    std::int64_t elements = 0;
    for (const auto& shape : models.back().event->shapes)
      elements += std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::map<std::int64_t, std::int64_t> moved;  // by step, in anything else
    for (const auto& at : rank->all<trace::Collective>()) {
      if (at.step < 0) continue;
      any = true;
      if (at.event->op != "broadcast")
        moved[at.step] +=
            std::accumulate(at.event->sizes.begin(), at.event->sizes.end(), std::int64_t{0});
    }
    if (std::any_of(moved.begin(), moved.end(),
                    [&](const auto& of_step) { return 10 * of_step.second >= elements; }))
      return false;
  }
  return any;
}

// After every update that was recorded, and of them two at least.
bool replicas_stay_equal(const Run& run) {
  std::map<std::int64_t, std::vector<const std::vector<trace::Summary>*>> steps;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Parameters>())
      if (at.step >= 0) steps[at.step].push_back(&at.event->values);
  return steps.size() >= 2 && std::all_of(steps.begin(), steps.end(), [&](const auto& of_step) {
           return of_step.second.size() == run.ranks.size() &&
                  groups_of_equal(of_step.second).tensor < 0;
         });
}

// Each rank goes by its own gradient in all steps, and yet the replicas are one: whoever's parameters they take
// over, the gradients of the others are lost.
std::optional<Finding> never_reduced(const Run& run, const std::vector<GradientStep>& steps) {
  if (!std::all_of(steps.begin(), steps.end(), is_unreduced)) return std::nullopt;
  if (run.devices || !only_broadcasts(run) || !replicas_stay_equal(run)) return std::nullopt;
  return Finding{.pitfall = "gradient-not-the-mean",
                 .severity = Severity::advice,
                 .ranks = run.numbers,
                 .step = steps.front().step,
                 .evidence =
                     "each rank updates with its own gradient, and the replicas stay equal by "
                     "broadcasts alone: no parameter has learned from all ranks' samples"};
}

}  // namespace

Verdict gradient_not_the_mean(const trace::Trace& trace) {
  constexpr double kTolerance = 0.01;  // gradients compressed to 16 bits on the way are a choice
  const Run run(trace);
  const auto steps = gradient_steps(run);
  if (steps.empty()) return not_triggered(kNoGradients);
  const GradientStep* told = nullptr;
  Severity severity = Severity::advice;
  for (const auto& step : steps) {
    if (is_unreduced(step) ? !is_unreduced_once(steps, step)
                           : reduction_scale(step, kTolerance).has_value())
      continue;
    const bool wrong = ranks_go_apart(run, step, kTolerance);
    if (told && !wrong) continue;
    told = &step;
    if (wrong) severity = Severity::violation;
    if (wrong) break;
  }
  if (!told) {
    const auto never = never_reduced(run, steps);
    return never ? found(*never) : clean();
  }
  return found(
      {.pitfall = "gradient-not-the-mean",
       .severity = severity,
       .ranks = run.numbers,
       .step = told->step,
       .evidence = "the reduced gradient lies " +
                   number(distance(told->reduced.front(), told->means.front())) +
                   " (relative) from the mean of the local ones and is no multiple of it; " +
                   (severity == Severity::violation ? "the ranks go by different ones"
                                                    : "the ranks stay together")});
}

}  // namespace lockstep::diagnose
