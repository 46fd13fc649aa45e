// Pitfalls of the learning rate's size: what it is, beside what was declared to suit a smaller run.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace lockstep::diagnose {
namespace {
Verdict lr_not_scaled(const Run& run);
Verdict linear_rule_with_adam(const Run& run);
Verdict no_warmup(const Run& run);
}  // namespace

// All need a declared reference rate and its world size, updates, and losses and both gradients of
// a first step; an update must take more samples than the reference run's.
std::vector<Detector> learning_rate_detectors() {
  return {
      // Advice. Needs parameters before and after the first update too, which goes along the
      // gradient. Rule: the highest rate is the reference's. Not fooled by a warm-up, by a gradient
      // that is W times as long (a summed loss), nor by an optimizer that normalises its gradient.
      {.slug = "lr-not-scaled",
       .equation = Equation::rates,
       .needs = {"intent", "update", "loss", "local_gradients", "reduced_gradients", "parameters"},
       .participants = Participants::ranks,
       .fewest = 1,
       .detect = lr_not_scaled},
      // Advice. Needs the same, and an update that is no multiple of the gradient, tensor by
      // tensor. Rule: the rate has grown as much as the batch. Not fooled by a factor of W that is
      // the root of a larger growth (accumulation), nor by weight decay.
      {.slug = "linear-rule-with-adam",
       .equation = Equation::rates,
       .needs = {"intent", "update", "loss", "local_gradients", "reduced_gradients", "parameters"},
       .participants = Participants::ranks,
       .fewest = 1,
       .detect = linear_rule_with_adam},
      // Needs losses of the first ten steps in a row; with fewer (the default records four) it
      // finds, and never says clean of a whole rate. Rule: the first update has the whole scaled
      // rate, and the mean loss of all ranks rises: by a fifth where a step has the first one's
      // samples, else to more than four times, or for good and by far more than the ten losses
      // vary. Not fooled by a scaled rate from the first update on that does no harm, nor by losses
      // of other samples that differ by chance.
      {.slug = "no-warmup",
       .equation = Equation::rates,
       .needs = {"intent", "update", "loss", "local_gradients", "reduced_gradients"},
       .level = 2,
       .participants = Participants::ranks,
       .fewest = 1,
       .detect = no_warmup},
  };
}

namespace {
// A loss of the same samples that is this many times the first one has risen.
constexpr double kRisen = 1.2;
// Of other samples, the losses differ by chance, and one low first loss must not look like a rise.
constexpr double kSeveralTimes = 4;
constexpr double kClose = 0.05;
constexpr std::int64_t kFirstSteps = 10;  // a loss that rises later rises for other reasons

struct Rates {
  double reference = 0;  // the rate declared to suit the reference run
  double growth = 1;     // samples of an update over the reference run's
  double first = 0, peak = 0;
  double stretch = 1;  // how many times the mean loss's gradient is what the optimizer was given
  std::optional<bool> follows_gradient;
};

// Takes the part along `direction` out of each vector.
void remove_part(const Vector& direction, std::initializer_list<Vector*> from) {
  const double square = dot(direction, direction);
  if (square == 0) return;
  for (auto* vector : from) {
    const double times = dot(*vector, direction) / square;
    for (std::size_t i = 0; i < vector->size(); ++i) (*vector)[i] -= times * direction[i];
  }
}

template <class T>
const T* at_step(const trace::ParticipantTrace& rank, std::int64_t step) {
  for (const auto& at : rank.all<T>())
    if (at.step == step) return at.event;
  return nullptr;
}

// Whether each tensor's first move was a multiple of its gradient, with or without a pull towards zero (weight
// decay): SGD's is, Adam's is not. Momentum has no part in a first move.
std::optional<bool> follows_gradient(const trace::ParticipantTrace& rank) {
  const auto* before = at_step<trace::Parameters>(rank, -1);
  const auto* after = at_step<trace::Parameters>(rank, 0);
  const auto* gradient = at_step<trace::ReducedGradients>(rank, 0);
  if (before == nullptr || after == nullptr || gradient == nullptr) return std::nullopt;
  const auto tensors =
      std::min({before->values.size(), after->values.size(), gradient->values.size()});
  bool any = false;
  for (std::size_t i = 0; i < tensors; ++i) {
    Vector held = before->values[i].sketch;
    const Vector along = gradient->values[i].sketch;
    if (held.size() != along.size() || held.size() != after->values[i].sketch.size()) continue;
    const Vector move = minus(after->values[i].sketch, held);
    Vector rest = move;
    remove_part(along, {&rest, &held});
    remove_part(held, {&rest});
    const double rounding = 1e-6 * before->values[i].norm;  // of float32 parameters
    if (norm(rest) > 0.02 * norm(move) + rounding) return false;
    any = true;
  }
  if (!any) return std::nullopt;
  return true;
}

// What a rank drew for a step.
std::vector<std::int64_t> samples_of(const trace::ParticipantTrace& rank, std::int64_t step) {
  std::vector<std::int64_t> ids;
  for (const auto& at : rank.all<trace::Samples>())
    if (at.step == step && at.event->phase == "train")
      ids.insert(ids.end(), at.event->ids.begin(), at.event->ids.end());
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Every rank drew for this step what it drew for the first one.
bool has_the_first_samples(const Run& run, std::int64_t step) {
  return std::all_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    const auto first = samples_of(*rank, 0);
    return !first.empty() && first == samples_of(*rank, step);
  });
}

// The mean losses over all ranks of the first steps, as far as they were recorded in a row.
std::vector<double> first_losses(const Run& run) {
  std::array<double, kFirstSteps> sum{}, count{};
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Loss>()) {
      if (at.step < 0 || at.step >= kFirstSteps) continue;
      const auto step = static_cast<std::size_t>(at.step);
      sum[step] += at.event->sum, count[step] += static_cast<double>(at.event->count);
    }
  std::vector<double> losses;
  for (std::size_t step = 0; step < sum.size() && count[step] != 0; ++step)
    losses.push_back(sum[step] / count[step]);
  return losses;
}

// Whether they rise by more than other samples would make them. Several times is more; of ten losses, so is
// a first one that lies further below the others than these lie apart, twice over.
bool rises(const Run& run, const std::vector<double>& losses) {
  const double first = losses.front();
  const auto [lowest, highest] = std::minmax_element(losses.begin() + 1, losses.end());
  if (*highest > kSeveralTimes * first) return true;
  if (has_the_first_samples(run, highest - losses.begin())) return *highest > kRisen * first;
  return losses.size() == kFirstSteps && *lowest > kRisen * first &&
         *lowest - first > 2 * (*highest - *lowest);
}

// The rates and what they are to be compared with; nothing, and why, where something is missing.
std::optional<Rates> rates_of(const Run& run, Verdict* why) {
  const auto missing = [&](const char* reason) {
    *why = not_triggered(reason);
    return std::nullopt;
  };
  const auto& rank = *run.ranks.front();
  const auto intents = rank.all<trace::Intent>();
  if (intents.empty() || intents.back().event->reference_lr <= 0 ||
      intents.back().event->reference_world_size <= 0)
    return missing("the run does not declare a reference rate and its world size");
  const auto updates = rank.all<trace::Update>();
  const auto& steps = gradient_steps(run);
  if (updates.empty() || steps.empty())
    return missing("no step has an update and every rank's gradients");
  if (is_unreduced(steps.front())) return missing("the ranks do not reduce their gradients");
  const auto* loss = at_step<trace::Loss>(rank, steps.front().step);
  const auto& samples = steps.front().samples;
  if (loss == nullptr || loss->count <= 0 || *std::min_element(samples.begin(), samples.end()) <= 0)
    return missing("no step has the samples behind its loss and gradient");

  Rates rates;
  rates.reference = intents.back().event->reference_lr;
  // A batch is what one backward takes; of these the reference run took one a rank.
  rates.growth = std::accumulate(samples.begin(), samples.end(), 0.0) /
                 static_cast<double>(intents.back().event->reference_world_size * loss->count);
  const auto highest = [](const trace::Update& update) {
    return update.lr.empty() ? 0.0 : *std::max_element(update.lr.begin(), update.lr.end());
  };
  rates.first = highest(*updates.front().event);
  for (const auto& at : updates) rates.peak = std::max(rates.peak, highest(*at.event));
  const auto of_loss = loss_scale(run, steps.front().step);
  const auto of_reduction = reduction_scale(steps.front(), kRounding);
  // A shorter gradient was clipped, and is no one's way to scale a rate down.
  if (of_loss && of_reduction) rates.stretch = std::max(1.0, *of_loss * *of_reduction);
  rates.follows_gradient = follows_gradient(rank);
  if (rates.growth < 1.5) {
    *why = not_applicable("an update takes no more samples than the reference run's");
    return std::nullopt;
  }
  return rates;
}

std::string grown(const Rates& rates) {
  return fmt::format(
      "an update takes {} times as many samples as the reference run's, whose rate is {}",
      number(rates.growth), number(rates.reference));
}

Verdict lr_not_scaled(const Run& run) {
  Verdict why;
  const auto rates = rates_of(run, &why);
  if (!rates) return why;
  if (!rates->follows_gradient) return not_triggered("the first update's move was not recorded");
  if (!*rates->follows_gradient)
    return not_applicable(
        "the optimizer does not go along the gradient, and its rate need not scale");
  if (!is_near(rates->peak * rates->stretch, rates->reference, kClose)) return clean();
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = 0,
                .evidence = fmt::format(
                    "{}; the highest rate of this run is {}, and its updates are not longer",
                    grown(*rates), number(rates->peak))});
}

Verdict linear_rule_with_adam(const Run& run) {
  Verdict why;
  const auto rates = rates_of(run, &why);
  if (!rates) return why;
  if (!rates->follows_gradient) return not_triggered("the first update's move was not recorded");
  if (*rates->follows_gradient)
    return not_applicable("the optimizer goes along the gradient, as the linear rule assumes");
  if (!is_near(rates->peak, rates->reference * rates->growth, kClose)) return clean();
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = 0,
                .evidence = fmt::format(
                    "{}; the highest rate of this run is {}, as many times that, though the first "
                    "update is no multiple of the gradient: the optimizer normalises it",
                    grown(*rates), number(rates->peak))});
}

Verdict no_warmup(const Run& run) {
  Verdict why;
  const auto rates = rates_of(run, &why);
  if (!rates) return why;
  const auto losses = first_losses(run);
  if (losses.size() < 2) return not_triggered("the losses of the first steps were not recorded");
  if (rates->first * rates->stretch < 0.9 * rates->growth * rates->reference) return clean();
  if (!rises(run, losses)) {
    const auto recorded = static_cast<std::int64_t>(losses.size());
    if (recorded == kFirstSteps) return clean();
    return not_triggered("the loss does not rise in the first " + plural(recorded, "step") +
                         ", and after them it was not recorded");
  }
  const auto highest = std::max_element(losses.begin(), losses.end());
  return found(
      {.ranks = run.numbers,
       .step = highest - losses.begin(),
       .evidence = fmt::format(
           "{}; the first update already has {}, and the loss rises from {} to {}", grown(*rates),
           number(rates->first), number(losses.front()), number(*highest))});
}

}  // namespace
}  // namespace lockstep::diagnose
