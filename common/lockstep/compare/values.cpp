// Tensors, by their summaries: parameters, gradients, buffers.
#include <lockstep/base/text.h>
#include <lockstep/compare/looks.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::compare {
namespace {

using diagnose::Quantity;
using Summaries = std::vector<trace::Summary>;

constexpr std::int64_t kEnd = INT64_MAX;

bool is_finite(const trace::Summary& summary) {
  return std::isfinite(summary.norm);
}

// How far two tensors are apart, by their projections: of one, the mean of the squares is the square of the norm.
double apart(const trace::Summary& a, const trace::Summary& b) {
  // Other vectors may have the same four projections, but not other norms by much.
  const auto by_norm = std::abs(a.norm - b.norm);
  if (a.sketch.size() != b.sketch.size() || a.sketch.empty()) return by_norm;
  return std::max(by_norm, diagnose::norm(diagnose::minus(a.sketch, b.sketch)) /
                               std::sqrt(static_cast<double>(a.sketch.size())));
}

// Of those that are finite.
double norm_of(const Summaries& values) {
  double squares = 0;
  for (const auto& each : values)
    if (is_finite(each)) squares += each.norm * each.norm;
  return std::sqrt(squares);
}

std::string summary_text(const trace::Summary& summary) {
  if (summary.sketch.empty()) return "none";
  if (!is_finite(summary)) return "not finite";
  return "norm " + number_text(summary.norm);
}

struct Values {
  Quantity quantity;
  std::string of;    // "local gradient of "
  std::string kind;  // "local ", before a tensor's name, where an equation has several kinds
  std::vector<std::string> names;  // of the tensors
  std::vector<std::size_t> in_b;   // their places in B
  Steps calm = {};                 // steps after which the parameters agree

  std::string what(std::size_t i) const { return of + name_at(names, i); }
};

Values of_model(const Pair& pair, Quantity quantity, const std::string& of = "",
                const std::string& kind = "", const Steps& calm = {}) {
  const auto names = diagnose::parameter_names(pair.a);
  return {quantity, of, kind, names, places_in_b(names, diagnose::parameter_names(pair.b)), calm};
}

// What a distance is divided by. A gradient whose terms cancel is smaller than their rounding, so a gradient's distance is
// divided by the norm of all gradients, and a parameter's at least by a part of all parameters' norm.
double scale_of(Quantity quantity, const trace::Summary& a, const trace::Summary& b, double all) {
  const auto own = std::max(a.norm, b.norm);
  if (quantity == Quantity::gradient) return all;
  return quantity == Quantity::parameter ? std::max(own, diagnose::kPartOfAll * all) : own;
}

void compare_values(const Pair& pair, At at, const Values& how, const Summaries& a,
                    const Summaries& b, Seen& seen) {
  seen.compared(at.step);
  const auto all = std::max(norm_of(a), norm_of(b));
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto in_b = place_of(how.in_b, i);
    if (in_b >= b.size()) continue;
    const auto &x = a[i], &y = b[in_b];
    if (x.sketch.empty() && y.sketch.empty()) continue;
    const auto name = how.kind + name_at(how.names, i);
    seen.tensor(name);
    if (x.sketch.empty() != y.sketch.empty() || is_finite(x) != is_finite(y)) {
      seen.tensor_apart(name, at.step, {std::numeric_limits<double>::infinity(), 0});
      seen.texts(at, how.what(i), summary_text(x), summary_text(y), true);
      continue;
    }
    if (x.hash == y.hash && x.hash != 0) continue;
    if (!is_finite(x)) {  // in both: a summary does not say which values
      seen.rounding();
      continue;
    }
    const auto scale = scale_of(how.quantity, x, y, all);
    const auto distance = scale > 0 ? apart(x, y) / scale : 0;
    auto tolerance = pair.tolerance(how.quantity, at.step);
    if (distance > tolerance && how.calm.count(at.step) > 0)
      tolerance = std::max(tolerance, diagnose::kCorner);
    seen.tensor_apart(name, at.step, {distance, tolerance});
    seen.distance(at, how.what(i), {summary_text(x), summary_text(y), distance, tolerance});
  }
}

template <class T>
void compare_events(const Pair& pair, std::int64_t from, std::int64_t until, const Values& how,
                    Seen& seen) {
  for_each_rank<T>(pair, [&](At at, const auto& a, const auto& b) {
    if (from <= at.step && at.step <= until)
      compare_values(pair, at, how, a.back()->values, b.back()->values, seen);
  });
}

// Where there are other ranks: replicas must be equal, then the first of each run stands for all.
template <class T>
void compare_replicas(const Pair& pair, std::int64_t from, std::int64_t until, const Values& how,
                      Seen& seen) {
  const auto look = [&](const diagnose::Run& run, std::int64_t step, const Events<T>& events) {
    for (std::size_t r = 1; r < events.size() && !events[0].empty(); ++r) {
      if (events[r].empty()) continue;
      const auto &first = events[0].back()->values, &other = events[r].back()->values;
      const int found = diagnose::first_difference(first, other);
      const auto i = static_cast<std::size_t>(found);
      if (found < 0 || i >= std::min(first.size(), other.size())) continue;
      seen.texts({step, -1},
                 how.what(i) + " on ranks 0 and " + std::to_string(run.numbers[r]) + " of " +
                     (&run == &pair.a ? "A" : "B"),
                 summary_text(first[i]), summary_text(other[i]), true);
      return;
    }
  };
  for_each_step<T>(pair, [&](std::int64_t step, const Events<T>& a, const Events<T>& b) {
    if (pair.same_ranks || step < from || step > until) return;
    look(pair.a, step, a);
    look(pair.b, step, b);
  });
}

// Of tensors that all ranks of a run must hold alike.
template <class T>
void compare_replicated(const Pair& pair, std::int64_t from, std::int64_t until, const Values& how,
                        Seen& seen) {
  compare_events<T>(pair, from, until, how, seen);
  compare_replicas<T>(pair, from, until, how, seen);
  if (from >= 0) seen.lonely<T>(pair);
}

// Whether a model's tensors can be compared.
bool fit(const Pair& pair, Seen& seen) {
  if (models_fit(pair)) return true;
  seen.cannot("the models have other parameters");
  return false;
}

std::vector<std::string> buffer_names(const diagnose::Run& run) {
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Buffers>()) return at.event->names;
  return {};
}

// What all ranks hold together: the mean of their gradients, weighted by the samples behind them where those are known.
// Its norm is the projections'; it has no hash.
Summaries mean_of(const Events<trace::LocalGradients>& events) {
  std::vector<const trace::LocalGradients*> all;
  for (const auto& of_rank : events)
    if (!of_rank.empty()) all.push_back(of_rank.back());
  const bool known = std::ranges::all_of(all, [](const auto* of) { return of->samples > 0; });
  std::vector<double> weights;
  std::size_t count = 0;
  for (const auto* of : all) {
    weights.push_back(known ? static_cast<double>(of->samples) : 1);
    count = std::max(count, of->values.size());
  }
  Summaries mean(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<diagnose::Vector> sketches;
    bool there = false;
    for (const auto* of : all) {
      sketches.push_back(i < of->values.size() ? of->values[i].sketch : diagnose::Vector{});
      there = there || !sketches.back().empty();
      sketches.back().resize(trace::kSketch);
    }
    if (!there) continue;
    mean[i].sketch = diagnose::mean(sketches, weights);
    mean[i].norm = diagnose::norm(mean[i].sketch) / std::sqrt(double{trace::kSketch});
  }
  return mean;
}

}  // namespace

void compare_start(const Pair& pair, Seen& seen) {
  if (fit(pair, seen))
    compare_replicated<trace::Parameters>(pair, kBefore, kBefore,
                                          of_model(pair, Quantity::parameter), seen);
}

void compare_parameters(const Pair& pair, Seen& seen) {
  if (fit(pair, seen))
    compare_replicated<trace::Parameters>(pair, 0, kEnd, of_model(pair, Quantity::parameter), seen);
}

void compare_moves(const Pair& pair, std::optional<std::int64_t> until, Seen& seen) {
  if (until)
    seen.cannot("what goes into the update differs " +
                (*until < 0 ? "before training" : "from step " + std::to_string(*until) + " on"));
  if (fit(pair, seen))
    compare_events<trace::Parameters>(pair, 0, until ? *until - 1 : kEnd,
                                      of_model(pair, Quantity::parameter), seen);
  seen.forget_tensors();
  const auto text = [](const trace::ScaledStep& of) { return of.updates ? "made" : "left out"; };
  for_each_in_both<trace::ScaledStep>(pair, [&](At at, const auto& a, const auto& b) {
    seen.texts(at, "update that a gradient scaler decides on", text(a), text(b));
  });
  if (pair.updates_a == pair.updates_b || pair.updates() == 0) return;
  seen.texts({pair.updates(), -1}, "number of updates", plural(pair.updates_a, "update"),
             plural(pair.updates_b, "update"));
}

void compare_local_gradients(const Pair& pair, const Steps& calm, Seen& seen) {
  if (!fit(pair, seen)) return;
  const auto how = of_model(
      pair, Quantity::gradient,
      pair.same_ranks ? "local gradient of " : "mean of the local gradients of ", "local ", calm);
  if (pair.same_ranks)
    compare_events<trace::LocalGradients>(pair, 0, kEnd, how, seen);
  else
    for_each_step<trace::LocalGradients>(
        pair, [&](std::int64_t step, const auto& a, const auto& b) {
          compare_values(pair, {step, -1}, how, mean_of(a), mean_of(b), seen);
        });
  seen.lonely<trace::LocalGradients>(pair);
}

void compare_reduced_gradients(const Pair& pair, const Steps& calm, Seen& seen) {
  if (fit(pair, seen))
    compare_replicated<trace::ReducedGradients>(
        pair, 0, kEnd, of_model(pair, Quantity::gradient, "reduced gradient of ", "reduced ", calm),
        seen);
}

void compare_buffers(const Pair& pair, Seen& seen) {
  const auto names = buffer_names(pair.a);
  const Values how{Quantity::buffer, "buffer ", "", names,
                   places_in_b(names, buffer_names(pair.b))};
  compare_events<trace::Buffers>(pair, kBefore, kEnd, how, seen);
  compare_replicas<trace::Buffers>(pair, kBefore, kBefore, how,
                                   seen);  // later each may have its own
  seen.lonely<trace::Buffers>(pair);
}

}  // namespace lockstep::compare
