// How great the losses of ranks that train one model are, and how much they weigh.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/divisors.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict loss_weight_differs(const Run& run);
Verdict losses_differ(const Run& run);
}  // namespace

std::vector<Detector> losses_detectors() {
  return {
      // Needs `loss`, or `loss_divisors` and `samples`, of all ranks on three steps or more. Rule: on each of them a
      // rank's backward() starts from another multiple of its mean loss than the first rank's, always the same. Advice:
      // a term of it is divided by such a multiple, over as many samples. Not fooled by unequal batches, whose losses
      // may weigh unequally, by a scaler's scale, nor by a term that is added. Or: at one step (`scaled_step`) the ranks
      // scale the loss by different factors.
      {.slug = "loss-weight-differs",
       .equation = Equation::loss_weights,
       .whole = true,
       .participants = Participants::ranks,
       .accounts_for = {"losses-differ", "gradient-not-the-mean"},
       .detect = loss_weight_differs},
      // Needs `loss` or `backward` of all ranks on 16 steps or more, and parameters that are equal where they were
      // recorded. Rule: from some step on a rank's losses are a quarter more than the others' in the geometric mean, or
      // a fifth less, by five standard errors of independent steps. Advice, since a rank's share
      // of the data may be of another kind. Not fooled by batches whose unequal sizes were recorded, by a scaler's
      // scale, nor by one batch in every step; blind where more than a tenth of the losses are negative.
      {.slug = "losses-differ",
       .equation = Equation::loss_weights,
       .whole = true,
       .participants = Participants::ranks,
       .detect = losses_differ},
  };
}

namespace {
// All losses of a step, and the scale they were multiplied by. The count is 0 where nothing tells what samples lost.
struct StepLoss {
  double backward = 0, sum = 0, scale = 1;
  std::int64_t count = 0, backwards = 0, samples = 0;  // samples: that were drawn, where known
  double mean() const {
    return count > 0 ? sum / static_cast<double>(count)
                     : backward / scale / static_cast<double>(backwards);
  }
};

std::map<std::int64_t, std::vector<StepLoss>> losses_by_step(const Run& run) {
  std::map<std::int64_t, std::vector<StepLoss>> steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto at_step = [&](std::int64_t step) -> StepLoss& {
      auto& ranks = steps[step];
      ranks.resize(run.ranks.size());
      return ranks[r];
    };
    for (const auto& at : run.ranks[r]->latest<trace::Loss>()) {
      auto& loss = at_step(at.step);
      loss.backward += at.event->backward_value;
      loss.sum += at.event->sum;
      loss.count += at.event->count;
      ++loss.backwards;
    }
    for (const auto& at : run.ranks[r]->latest<trace::Backward>()) {
      auto& loss = at_step(at.step);
      loss.backward += at.event->value;
      ++loss.backwards;
    }
    for (const auto& at : run.ranks[r]->latest<trace::Samples>())
      if (at.event->phase == "train")
        at_step(at.step).samples += static_cast<std::int64_t>(at.event->ids.size());
    for (const auto& at : run.ranks[r]->latest<trace::ScaledStep>())
      at_step(at.step).scale = at.event->scale;
  }
  return steps;
}

// What each rank's mean loss is multiplied by before backward, over the first rank's. Nothing where ranks have
// different numbers of samples, which are weighted on purpose.
std::optional<std::vector<double>> weights(const std::vector<StepLoss>& losses) {
  std::vector<double> weights;
  for (const auto& loss : losses) {
    if (loss.count != losses.front().count || loss.count == 0 || loss.sum == 0 || loss.scale == 0)
      return std::nullopt;
    weights.push_back(loss.backward / loss.scale * static_cast<double>(loss.count) / loss.sum);
  }
  const double first = weights.front();
  if (first == 0 || !std::isfinite(first)) return std::nullopt;
  for (auto& weight : weights) weight /= first;
  return weights;
}

// Each rank's text: the value of the first rank of its group.
std::vector<std::string> texts_of(const std::vector<std::size_t>& groups,
                                  const std::vector<double>& values) {
  std::map<std::size_t, std::string> text_of_group;
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < groups.size(); ++r)
    texts.push_back(text_of_group.try_emplace(groups[r], number(values[r])).first->second);
  return texts;
}

// The ranks' weights, where they differ and are the same in every step; `first` is the first of the steps.
std::vector<Finding> weights_differ(const Run& run, std::int64_t first,
                                    const std::vector<std::vector<double>>& of_steps) {
  for (const auto& weights : of_steps)
    for (std::size_t r = 0; r < run.ranks.size(); ++r)
      if (!is_near(weights[r], of_steps.front()[r], 0.01)) return {};
  if (of_steps.size() < kAgreeing) return {};
  const auto texts = texts_of(groups_by_gap(of_steps.front(), 0.05), of_steps.front());
  auto finding =
      differs(run, "the weight of the loss, relative to the first rank's,", texts, first);
  return finding ? std::vector{*finding} : std::vector<Finding>{};
}

// A loss with further terms weighs differently on each step, so it is left alone.
std::vector<Finding> weights_by_losses(const Run& run) {
  std::vector<std::vector<double>> of_steps;
  std::int64_t first = -1;
  for (const auto& [step, losses] : run.once(losses_by_step)) {
    auto found = weights(losses);
    if (!found) continue;
    if (of_steps.empty()) first = step;
    of_steps.push_back(std::move(*found));
  }
  return weights_differ(run, first, of_steps);
}

// Every rank is known to have as many samples as the others.
bool has_equal_batches(const std::vector<StepLoss>& losses) {
  return std::all_of(losses.begin(), losses.end(), [&](const StepLoss& rank) {
    return rank.samples > 0 && rank.samples == losses.front().samples;
  });
}

// The first term that weighs more on one rank than on another. This is advice: a term may be a mean over words, and
// ranks with as many samples have other numbers of words.
std::vector<Finding> weights_by_divisors(const Run& run) {
  const auto& losses = run.once(losses_by_step);
  const auto& divisors = divisors_by_step(run);
  if (divisors.empty()) return {};
  const auto& [first, of_first] = *divisors.begin();
  const auto terms = of_first.front().size();
  for (const auto& [step, ranks] : divisors)
    if (const auto there = losses.find(step);
        there == losses.end() || !has_equal_batches(there->second) || ranks.front().size() != terms)
      return {};
  for (std::size_t term = 0; term < terms; ++term) {
    std::vector<std::vector<double>> of_steps;
    for (const auto& [step, ranks] : divisors) {
      auto& weights = of_steps.emplace_back();
      for (const auto& rank : ranks) weights.push_back(ranks.front()[term] / rank[term]);
    }
    if (auto found = weights_differ(run, first, of_steps); !found.empty()) {
      found.front().severity = Severity::advice;
      return found;
    }
  }
  return {};
}

std::vector<Finding> loss_weights(const Run& run) {
  auto found = weights_by_losses(run);
  return found.empty() ? weights_by_divisors(run) : found;
}

// ---- how great they are ----

constexpr double kFurther = 0.223;  // ln 1.25: one loss is a quarter more than another
constexpr double kErrors = 5;       // standard errors
constexpr std::size_t kSteps = 16;

// The logarithm of each rank's loss, and how far it is from the mean of the other ranks'.
struct StepLogs {
  std::int64_t step = 0;
  std::vector<double> of, from_others;
};

// Steps in which every rank has a loss above 0, of as many samples as the others.
std::vector<StepLogs> logs_of(const Run& run) {
  std::vector<StepLogs> steps;
  for (const auto& [step, losses] : run.once(losses_by_step)) {
    const auto& first = losses.front();
    const bool usable = std::all_of(losses.begin(), losses.end(), [&](const StepLoss& loss) {
      return loss.backwards > 0 && loss.backwards == first.backwards &&
             loss.samples == first.samples && loss.count == first.count &&
             std::isfinite(loss.mean()) && loss.mean() > 0;
    });
    if (step < 0 || !usable) continue;
    StepLogs logs{.step = step, .of = {}, .from_others = {}};
    for (const auto& loss : losses) logs.of.push_back(std::log(loss.mean()));
    const double sum = std::accumulate(logs.of.begin(), logs.of.end(), 0.0);
    for (const double log : logs.of)
      logs.from_others.push_back(log - (sum - log) / static_cast<double>(losses.size() - 1));
    steps.push_back(std::move(logs));
  }
  return steps;
}

// More than a tenth of them, as a policy's may be: then how many times as great they are says nothing.
bool are_often_negative(const Run& run) {
  std::size_t all = 0, negative = 0;
  for (const auto& [step, losses] : run.once(losses_by_step))
    for (const auto& loss : losses) {
      if (loss.backwards == 0) continue;
      ++all;
      if (loss.mean() < 0) ++negative;
    }
  return 10 * negative > all;
}

// From where on one rank's losses differ.
struct Departure {
  std::size_t rank = 0, first = 0;  // first: a place in the steps
  double sum = 0;
};
// Each step adds the rank's distance less half the threshold, so similar losses lower the sum.
Departure departure(const std::vector<StepLogs>& steps, std::size_t ranks) {
  Departure greatest;
  for (std::size_t r = 0; r < ranks; ++r)
    for (const double sign : {1.0, -1.0}) {
      double sum = 0;
      for (std::size_t i = steps.size(); i-- > 0;) {
        sum += sign * steps[i].from_others[r] - kFurther / 2;
        if (sum > greatest.sum) greatest = {r, i, sum};
      }
    }
  return greatest;
}

// The mean and its standard error.
struct Mean {
  double value = 0, error = 0;
};
Mean mean_of(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / (n - 1) / n)};
}

bool replicas_are_equal(const Run& run) {
  const auto& steps = replicas_by_step(run);
  return std::all_of(steps.begin(), steps.end(),
                     [](const auto& step) { return groups_of_equal(step.second).tensor < 0; });
}

// Its steps then say no more of its data than one of them does.
bool is_given_one_batch(const trace::ParticipantTrace& rank) {
  const auto given = rank.latest<trace::Rows>();
  std::size_t again = 0;
  for (std::size_t i = 1; i < given.size(); ++i)
    again += given[i].event->hashes == given[i - 1].event->hashes ? 1 : 0;
  return 2 * again > given.size();
}

std::vector<Finding> loss_sizes(const Run& run) {
  const auto ranks = run.ranks.size();
  const auto& steps = run.once(logs_of);
  if (!replicas_are_equal(run)) return {};
  for (const auto* rank : run.ranks)
    if (is_given_one_batch(*rank)) return {};
  const auto off = departure(steps, ranks);
  const auto count = steps.size() - off.first;
  if (count < kSteps) return {};
  std::vector<double> distances;
  std::vector<double> means(ranks);
  for (std::size_t i = off.first; i < steps.size(); ++i) {
    distances.push_back(steps[i].from_others[off.rank]);
    for (std::size_t r = 0; r < ranks; ++r) means[r] += steps[i].of[r] / static_cast<double>(count);
  }
  const auto distance = mean_of(distances);
  const double apart = std::max(kFurther, kErrors * distance.error);
  if (std::abs(distance.value) < apart) return {};
  const auto groups = groups_by_gap(means, apart);
  for (auto& mean : means) mean = std::exp(mean);
  auto finding = differs(run,
                         "the loss that backward() starts from, in the geometric mean of " +
                             plural(static_cast<std::int64_t>(count), "step") + ",",
                         texts_of(groups, means), steps[off.first].step);
  if (!finding) return {};
  finding->severity = Severity::advice;
  return {*finding};
}

// A GradScaler's. Ranks that count other steps, or leave other ones out, let it grow at other times.
std::vector<Finding> scales_of_losses(const Run& run) {
  const auto steps = by_step<trace::ScaledStep>(run);
  for (auto at = steps.begin(); at != steps.end(); ++at) {
    std::vector<std::string> scales;
    for (const auto* rank : at->second) scales.push_back(number(rank->scale));
    auto finding = differs(run, "the scale of the loss", scales, at->first);
    if (!finding) continue;
    finding->evidence += ": the mean of the gradients weighs the ranks by it";
    if (at != steps.begin()) finding->after = std::prev(at)->first;
    return {*finding};
  }
  return {};
}

Verdict loss_weight_differs(const Run& run) {
  if (run.kinds.count("scaled_step") > 0)
    if (auto scaled = among_replicas(run, scales_of_losses); scaled.state == State::found)
      return scaled;
  if (run.kinds.count("loss") == 0 && run.kinds.count("loss_divisors") == 0)
    return not_triggered("neither losses nor what they were divided by were recorded");
  return among_replicas(run, loss_weights);
}

Verdict losses_differ(const Run& run) {
  if (are_often_negative(run)) return not_triggered("more than a tenth of the losses are negative");
  if (run.once(logs_of).size() < kSteps)
    return not_triggered(
        "too few steps in which every rank has a loss above 0, of as many samples");
  return among_replicas(run, loss_sizes);
}

}  // namespace
}  // namespace lockstep::diagnose
