// The generic finding of gradients: no mean of what the ranks computed, in a way that no pitfall has a name for.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/moves.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict gradient_not_the_mean(const Run& run);
}  // namespace

std::vector<Detector> gradient_mean_detectors() {
  return {
      // Rule: the reduced gradient is not a multiple of the mean of the local ones, plain or
      // weighted by samples, within 1 %. Multiples are left alone (clipping by norm, loss scaling),
      // and so are ranks that do not reduce at all (see no-gradient-sync), but for one step
      // between others that are reduced. Advice while all ranks have the same gradient or stay
      // equal (clipping by value does that, and a sharded optimizer); a violation where neither
      // holds. Advice, too, where it is one multiple in all steps of what the run declares, and
      // where ranks that never reduce stay equal by broadcasts alone. No advice where the job trains
      // several models, or parts of one.
      {.slug = "gradient-not-the-mean",
       .equation = Equation::mean_gradient,
       .whole = true,
       .needs = {"local_gradients", "reduced_gradients"},
       .fewest = 1,
       .detect = gradient_not_the_mean},
  };
}

namespace {
bool is_zero(const GradientStep& step) {
  const auto none = [](const Vector& vector) {
    return std::all_of(vector.begin(), vector.end(), [](double value) { return value == 0; });
  };
  return std::all_of(step.local.begin(), step.local.end(), none) &&
         std::all_of(step.reduced.begin(), step.reduced.end(), none);
}

// The ranks go by other gradients, and are apart after the update or it was not recorded: whatever
// changed the gradients on the way, it was not the same everywhere.
bool ranks_go_apart(const ReplicasByStep& replicas, const GradientStep& step, double tolerance) {
  if (all_near(step.reduced, step.reduced.front(), tolerance)) return false;
  const auto after = replicas.find(step.step);
  return after == replicas.end() || groups_of_equal(after->second).tensor >= 0;
}

// Every rank went by its own gradient once, and by one that was reduced before and after it. Not where the replicas
// were brought together again afterwards, which is a way to train (local steps, then a mean of the parameters).
bool is_unreduced_once(const ReplicasByStep& all, const std::vector<GradientStep>& steps,
                       const GradientStep& step) {
  bool apart_before = false, apart = false;
  for (const auto& [number, replicas] : all) {
    if (number < 0) continue;
    const bool equal = groups_of_equal(replicas).tensor < 0;
    if (number < step.step) apart_before = !equal;
    if (number == step.step) apart = !equal;
    if (number >= step.step && equal && (apart_before || apart)) return false;
  }
  const auto was_reduced = [](const GradientStep& other) { return !is_unreduced(other); };
  const auto at = std::find_if(steps.begin(), steps.end(),
                               [&](const auto& other) { return other.step == step.step; });
  return std::any_of(steps.begin(), at, was_reduced) && std::any_of(at, steps.end(), was_reduced);
}

// No rank can have learned of another's gradient: but for a few numbers, all that went between them in these updates
// is broadcasts, and those of one root at most are as large as the parameters. (Of several that are, the ranks
// may take the mean.)
bool only_broadcasts(const Run& run, const std::vector<GradientStep>& steps) {
  constexpr std::int64_t kFew = 64;
  std::set<std::int64_t> looked_at;
  for (const auto& step : steps) looked_at.insert(step.step);
  bool any = false;
  for (const auto* rank : run.ranks) {
    const auto models = rank->all<trace::Model>();
    if (models.empty()) return false;
    const auto elements = elements_of(*models.back().event);
    std::map<std::int64_t, std::int64_t> moved;                          // by step, otherwise
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> sent;  // by step and root
    for (const auto& at : rank->all<trace::Collective>()) {
      if (!looked_at.count(at.step)) continue;
      any = true;
      const bool broadcast = at.event->op == "broadcast";
      auto& sum = broadcast ? sent[{at.step, at.event->root}] : moved[at.step];
      sum += elements_of(*at.event);
      if (!broadcast && sum >= kFew) return false;
    }
    std::map<std::int64_t, int> whole;  // by step: roots that sent all of them
    for (const auto& [key, sum] : sent) whole[key.first] += 2 * sum >= elements ? 1 : 0;
    if (std::any_of(whole.begin(), whole.end(), [](const auto& step) { return step.second > 1; }))
      return false;
  }
  return any;
}

// After every update that was recorded, and of them two at least.
bool replicas_stay_equal(ReplicasByStep steps) {
  steps.erase(-1);
  return steps.size() >= 2 && std::all_of(steps.begin(), steps.end(), [](const auto& step) {
           return groups_of_equal(step.second).tensor < 0;
         });
}

// Each rank goes by its own gradient in all steps, and yet the replicas are one: whoever's parameters they take
// over, the gradients of the others are lost.
std::optional<Finding> never_reduced(const Run& run, const ReplicasByStep& replicas,
                                     const std::vector<GradientStep>& steps) {
  if (!std::all_of(steps.begin(), steps.end(), is_unreduced)) return std::nullopt;
  if (run.devices || !replicas_stay_equal(replicas)) return std::nullopt;
  if (!only_broadcasts(run, steps) && !moves_by_one_rank_each(run)) return std::nullopt;
  return Finding{
      .severity = Severity::advice,
      .ranks = run.numbers,
      .step = steps.front().step,
      .evidence =
          "each rank updates with its own gradient, and the replicas stay equal by taking "
          "over one rank's parameters: none has learned from all ranks' samples"};
}

// Of an update: microbatches, or several losses of the same samples.
bool has_several_backwards(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    const auto losses = rank->template all<trace::Loss>();
    return std::adjacent_find(losses.begin(), losses.end(), [](const auto& a, const auto& b) {
             return a.step == b.step;
           }) != losses.end();
  });
}

// In all steps the gradient is one and the same multiple of what the program says it means: of the mean over all
// samples. What scales a loss, or clips, is left out; so is a loss with something added to it, which is no
// multiple of its samples'.
std::optional<Finding> other_multiple(const Run& run) {
  if (run.devices || run.world_size < 2 || !declares_mean_loss(run)) return std::nullopt;
  const auto& steps = scales(run);
  if (steps.size() < 2) return std::nullopt;
  const auto scales_or_clips = [](const auto* rank) {
    return !rank->template all<trace::ScaledStep>().empty() ||
           !rank->template all<trace::Clip>().empty();
  };
  if (std::any_of(run.ranks.begin(), run.ranks.end(), scales_or_clips)) return std::nullopt;
  const double times = steps.front().reduction * steps.front().loss;
  const bool for_the_sum =
      is_near(times, run.world_size, 0.01);  // a loss times W makes DDP's mean a sum
  if (times <= 0 || is_near(times, 1, 0.05) || for_the_sum || has_several_backwards(run))
    return std::nullopt;
  if (!std::all_of(steps.begin(), steps.end(),
                   [&](const Scales& s) { return is_near(s.reduction * s.loss, times, 0.01); }))
    return std::nullopt;
  return Finding{.severity = Severity::advice,
                 .ranks = run.numbers,
                 .step = steps.front().step,
                 .evidence = fmt::format(
                     "the gradient is {} times that of the declared mean loss, in all {}",
                     number(times), plural(static_cast<std::int64_t>(steps.size()), "step"))};
}

constexpr double kTolerance = 0.01;  // gradients compressed to 16 bits on the way are a choice

// Where each rank goes by a multiple of the mean, and not all by the same one: "0.5 times the mean on rank 1, ...".
std::optional<std::string> multiples(const Run& run, const GradientStep& step) {
  const auto& mean = step.means.front();
  const double square = dot(mean, mean);
  if (run.devices || square == 0) return std::nullopt;
  std::vector<std::string> factors;
  for (const auto& reduced : step.reduced) {
    const double factor = dot(mean, reduced) / square;
    if (distance(times(factor, mean), reduced) > kTolerance) return std::nullopt;
    const auto text = number(factor);
    factors.push_back(text == "1" ? "the mean" : text + " times the mean");
  }
  const auto who = ranks_by_text(run.numbers, factors);
  if (who.size() < 2) return std::nullopt;
  std::vector<std::string> parts;
  for (const auto& [factor, ranks] : who)
    parts.push_back(fmt::format("{} on {}", factor, lockstep::ranks_text(ranks)));
  return "the reduced gradient is " + list(parts);
}

// The farthest of the reduced gradients, how far it is, and in which parameters.
std::string how_far(const Run& run, const GradientStep& step) {
  const auto& mean = step.means.front();
  const auto far = std::max_element(
      step.reduced.begin(), step.reduced.end(),
      [&](const auto& a, const auto& b) { return distance(a, mean) < distance(b, mean); });
  std::vector<std::size_t> apart;
  const auto parameters = mean.size() / trace::kSketch;
  for (std::size_t i = 0; i < parameters && far->size() == mean.size(); ++i) {
    const auto of_one = [&](const Vector& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * trace::kSketch);
      return Vector(begin, begin + trace::kSketch);
    };
    if (distance(of_one(*far), of_one(mean)) > kTolerance) apart.push_back(i);
  }
  const auto rank = static_cast<std::size_t>(far - step.reduced.begin());
  auto text = fmt::format(
      "the reduced gradient{} lies {} (relative) from the mean of the local ones and is no "
      "multiple of it",
      run.devices ? "" : " of rank " + std::to_string(run.numbers[rank]),
      number(distance(*far, mean)));
  if (!apart.empty())
    text += fmt::format(", in {} of {} parameters, first in {}", apart.size(), parameters,
                        tensor_text("parameter", apart.front(), parameter_names(run)));
  return text;
}

Verdict gradient_not_the_mean(const Run& run) {
  const auto& steps = gradient_steps(run);
  if (steps.empty()) return not_triggered(kNoGradients);
  const auto& replicas = replicas_by_step(run);
  const GradientStep* told = nullptr;
  Severity severity = Severity::advice;
  for (const auto& step : steps) {
    if (is_zero(step)) continue;
    if (is_unreduced(step) ? !is_unreduced_once(replicas, steps, step)
                           : reduction_scale(step, kTolerance).has_value())
      continue;
    const bool wrong = ranks_go_apart(replicas, step, kTolerance);
    if (told && !wrong) continue;
    told = &step;
    if (wrong) severity = Severity::violation;
    if (wrong) break;
  }
  if (!told) {
    auto other = never_reduced(run, replicas, steps);
    if (!other) other = other_multiple(run);
    return other ? found(*other) : clean();
  }
  if (run.is_part && severity == Severity::advice)
    return not_triggered("ranks that hold other parts of the model may add to a gradient");
  return found({.severity = severity,
                .ranks = run.numbers,
                .step = told->step,
                .evidence = multiples(run, *told).value_or(how_far(run, *told)) + "; " +
                            (severity == Severity::violation ? "the ranks go by different ones"
                                                             : "the ranks stay together"),
                .after = told == &steps.front() ? -1 : std::prev(told)->step});
}

}  // namespace
}  // namespace lockstep::diagnose
