// Losses that are each the mean of a rank's own batch, where batches are unequal.
#include <lockstep/diagnose/backwards.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/divisors.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace lockstep::diagnose {
namespace {
Verdict mean_of_local_means(const Run& run);
}  // namespace

std::vector<Detector> local_means_detectors() {
  return {
      // Needs a declared mean loss, losses, and both gradients of a step in which the ranks have
      // unequally many samples. Rule: each rank starts from the mean loss of its own samples, and
      // the reduced gradient is the plain mean. Not fooled by losses that are weighted, or
      // gradients that are divided later, by all samples. Where nothing is declared, advice: in three steps the ranks'
      // losses, by `loss_divisors`, or their gradients are divided by counts that differ, and the reduced gradient is
      // made of these.
      {.slug = "mean-of-local-means",
       .equation = Equation::loss_weights,
       .needs = {"local_gradients", "reduced_gradients"},
       .participants = Participants::ranks,
       .accounts_for = {"loss-weight-differs", "gradient-not-the-mean", "configuration-differs"},
       .detect = mean_of_local_means},
  };
}

namespace {
// Each rank's one loss of a step is the mean of its own samples.
bool are_own_means(const std::vector<std::vector<UpdateSpan>>& spans, std::int64_t step) {
  return std::all_of(spans.begin(), spans.end(), [&](const auto& of_rank) {
    const auto span =
        std::find_if(of_rank.begin(), of_rank.end(), [&](const auto& s) { return s.step == step; });
    return span != of_rank.end() && span->backwards.size() == 1 &&
           is_near(span->backwards.front().share, 1, 1e-3);
  });
}

// On every rank the reduced gradient is `mean`, by how far the two are apart.
bool all_go_by(const GradientStep& step, const Vector& mean,
               double (*apart)(const Vector&, const Vector&)) {
  return std::all_of(step.reduced.begin(), step.reduced.end(),
                     [&](const Vector& reduced) { return apart(reduced, mean) <= kRounding; });
}

// ---- how a reduced gradient is made of the ranks' own ----

using Rows = std::vector<std::vector<double>>;

// Row i: the products of gradient i with all of them, and with the reduced one.
Rows normal_equations(const GradientStep& step) {
  Rows rows;
  for (const auto& gradient : step.local) {
    auto& row = rows.emplace_back();
    for (const auto& other : step.local) row.push_back(dot(gradient, other));
    row.push_back(dot(gradient, step.reduced.front()));
  }
  return rows;
}

// Gauss and Jordan. The diagonal of equations like these is what the gradients before do not make up of one.
bool eliminate(Rows& rows) {
  constexpr double kAlike = 1e-6;
  std::vector<double> squares;
  for (std::size_t i = 0; i < rows.size(); ++i) squares.push_back(rows[i][i]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i][i] <= kAlike * squares[i]) return false;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (k == i) continue;
      const double factor = rows[k][i] / rows[i][i];
      for (std::size_t j = i; j < rows[k].size(); ++j) rows[k][j] -= factor * rows[i][j];
    }
  }
  return true;
}

// For each rank what its gradient is multiplied by in the reduced one, above 0: 1/W in a mean. By least squares. Nothing
// where ranks go by other gradients, where these are not made of the ranks' own, or where one's is made of the others'.
std::optional<std::vector<double>> factors_of(const GradientStep& step) {
  const auto& reduced = step.reduced.front();
  if (!all_near(step.reduced, reduced, kRounding)) return std::nullopt;
  for (const auto& local : step.local)
    if (local.size() != reduced.size()) return std::nullopt;
  auto rows = normal_equations(step);
  if (!eliminate(rows)) return std::nullopt;
  std::vector<double> factors;
  Vector made(reduced.size(), 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    factors.push_back(rows[i].back() / rows[i][i]);
    if (factors.back() <= 0) return std::nullopt;
    for (std::size_t k = 0; k < made.size(); ++k) made[k] += factors.back() * step.local[i][k];
  }
  return distance(made, reduced) <= kRounding ? std::optional(factors) : std::nullopt;
}

// ---- losses that are divided by a count of the rank's own ----

constexpr std::size_t kStepsOfMeans = 3;  // at least, where the program declares nothing

// What was worked out from gradients is less exact.
bool is_count(double value, bool is_exact) {
  const double off = std::abs(value - std::round(value));
  return value >= 1 - 1e-6 && off <= (is_exact ? 1e-6 * value : 0.02);
}

// What the ranks' gradients count for, 1 where all count the same, whatever a clip makes of them.
std::optional<std::vector<double>> shares_of(const GradientStep& step) {
  if (all_go_by(step, step.means.front(), angle))
    return std::vector<double>(step.local.size(), 1.0);
  auto factors = factors_of(step);
  if (factors)
    for (auto& factor : *factors) factor *= static_cast<double>(step.local.size());
  return factors;
}

// The first of the losses whose divisors are counts, and not the same on all ranks. A program that reduces a sum of
// gradients may divide by W, too.
std::optional<std::vector<double>> own_counts(const Divisors& divisors, int world_size,
                                              bool are_exact) {
  for (std::size_t i = 0; i < divisors.front().size(); ++i) {
    std::vector<double> of_ranks;
    for (const auto& rank : divisors) of_ranks.push_back(rank[i]);
    const auto [least, most] = std::minmax_element(of_ranks.begin(), of_ranks.end());
    if (is_near(*most, *least, 1e-3)) continue;
    for (const double factor : {1.0, static_cast<double>(world_size)}) {
      auto counts = of_ranks;
      for (auto& count : counts) count *= factor;
      if (std::all_of(counts.begin(), counts.end(),
                      [&](double count) { return is_count(count, are_exact); }))
        return counts;
    }
  }
  return std::nullopt;
}

bool has_unequal_batches(const GradientStep& step) {
  const auto [least, most] = std::minmax_element(step.samples.begin(), step.samples.end());
  return *least > 0 && *most > *least;
}

// A rank's loss that always counts so many times as much as another's, over equal batches, is weighted.
bool is_weight(const std::vector<std::vector<double>>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](const auto& of_step) {
    for (std::size_t r = 0; r < of_step.size(); ++r)
      if (!is_near(of_step[r] / of_step[0], counts[0][r] / counts[0][0], 1e-3)) return false;
    return true;
  });
}

Verdict divided_by_own_counts(const Run& run, const std::vector<GradientStep>& steps) {
  const auto& divisors = divisors_by_step(run);
  if (divisors.empty()) return not_triggered(kNoMeanLoss);
  std::vector<std::vector<double>> counts;
  std::int64_t first = -1;
  bool unequal = false;
  for (const auto& step : steps) {
    const auto there = divisors.find(step.step);
    if (there == divisors.end()) continue;
    const auto shares = shares_of(step);
    if (!shares) continue;
    const bool are_exact = std::count(shares->begin(), shares->end(), 1.0) ==
                           static_cast<std::ptrdiff_t>(shares->size());
    auto divided = there->second;
    for (std::size_t r = 0; r < divided.size(); ++r)
      for (auto& divisor : divided[r]) divisor /= (*shares)[r];
    auto own = own_counts(divided, run.world_size, are_exact);
    if (!own) continue;
    if (counts.empty()) first = step.step;
    counts.push_back(std::move(*own));
    unequal = unequal || has_unequal_batches(step);
  }
  if (counts.size() < kStepsOfMeans || (!unequal && is_weight(counts))) return clean();
  const auto [least, most] = std::minmax_element(counts.front().begin(), counts.front().end());
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = first,
                .evidence = fmt::format(
                    "each rank divides its loss or its gradient by a count of its own, here by {} "
                    "to {}, and all go by the mean or the sum of what comes of it, in {}: what is "
                    "counted weighs more on a rank that has less of it",
                    number(*least), number(*most),
                    plural(static_cast<std::int64_t>(counts.size()), "recorded step"))});
}

Verdict mean_of_local_means(const Run& run) {
  const auto& steps = gradient_steps(run);
  if (steps.empty()) return not_triggered(kNoGradients);
  if (!declares_mean_loss(run)) return divided_by_own_counts(run, steps);
  const auto& spans = update_spans(run);
  bool looked = false;
  for (const auto& step : steps) {
    const auto& means = step.means;
    if (means.size() < 2) continue;  // equally many samples on all ranks, or not known
    looked = true;
    const auto& plain = means.front();
    if (!are_own_means(spans, step.step) || !all_go_by(step, plain, distance) ||
        all_go_by(step, means.back(), distance))
      continue;
    const auto [least, most] = std::minmax_element(step.samples.begin(), step.samples.end());
    return found(
        {.ranks = run.numbers,
         .step = step.step,
         .evidence = fmt::format(
             "ranks of {} to {} samples each start from their own mean loss, and go by the plain "
             "mean of their gradients, which lies {} (relative) from the mean over the samples",
             number(*least), number(*most), number(distance(plain, means.back())))});
  }
  if (!looked) return not_applicable("in every step all ranks have equally many samples");
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
