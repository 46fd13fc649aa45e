// Tensors, by their summaries: parameters, gradients, buffers.
#include <lockstep/base/text.h>
#include <lockstep/compare/aspects.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::compare {
namespace {

using diagnose::parameter_names;
using Summaries = std::vector<trace::Summary>;

bool is_finite(const trace::Summary& summary) {
  return std::isfinite(summary.norm);
}

// How far two tensors are apart, by their projections: of one, the mean of the squares is the square of the norm.
double apart(const trace::Summary& a, const trace::Summary& b) {
  double squares = 0;
  const auto count = std::min(a.sketch.size(), b.sketch.size());
  for (std::size_t p = 0; p < count; ++p)
    squares += (a.sketch[p] - b.sketch[p]) * (a.sketch[p] - b.sketch[p]);
  // Other vectors may have the same four projections, but not other norms by much.
  const auto by_sketch = count > 0 ? std::sqrt(squares / static_cast<double>(count)) : 0;
  return std::max(by_sketch, std::abs(a.norm - b.norm));
}

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
  diagnose::Quantity quantity;
  std::string of;                    // "gradient of "
  std::vector<std::string> names;    // of the tensors
  std::vector<std::size_t> in_b;     // their places in B
  std::set<std::int64_t> calm = {};  // steps after which the parameters agree
};

Values of_parameters(const Pair& pair, diagnose::Quantity quantity, const std::string& of,
                     const std::set<std::int64_t>& calm = {}) {
  const auto names = parameter_names(pair.a);
  return {quantity, of, names, places_in_b(names, parameter_names(pair.b)), calm};
}

// What a distance is divided by. A gradient whose terms cancel is smaller than their rounding, so a gradient's distance is
// divided by the norm of all gradients, and a parameter's at least by a part of all parameters' norm.
double scale_of(diagnose::Quantity quantity, const trace::Summary& a, const trace::Summary& b,
                double all) {
  const auto own = std::max(a.norm, b.norm);
  if (quantity == diagnose::Quantity::gradient) return all;
  return quantity == diagnose::Quantity::parameter ? std::max(own, diagnose::kPartOfAll * all)
                                                   : own;
}

void compare_values(const Pair& pair, std::int64_t step, int rank, const Values& how,
                    const Summaries& a, const Summaries& b, Ledger& ledger) {
  ledger.compared(step);
  const auto all = std::max(norm_of(a), norm_of(b));
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto at = place_of(how.in_b, i);
    if (at >= b.size()) continue;
    const auto &x = a[i], &y = b[at];
    if (x.sketch.empty() && y.sketch.empty()) continue;
    const auto name = name_at(how.names, i), what = how.of + name;
    ledger.tensor(name);
    if (x.sketch.empty() != y.sketch.empty() || is_finite(x) != is_finite(y)) {
      ledger.tensor_apart(name, {step, std::numeric_limits<double>::infinity(), 0});
      ledger.texts(step, rank, what, summary_text(x), summary_text(y), true);
      continue;
    }
    if (x.hash == y.hash && x.hash != 0) continue;
    if (!is_finite(x)) {  // in both: a summary does not say which values
      ledger.rounding();
      continue;
    }
    const auto scale = scale_of(how.quantity, x, y, all);
    const auto distance = scale > 0 ? apart(x, y) / scale : 0;
    auto tolerance = diagnose::tolerance_of(how.quantity, pair.unit, step);
    if (distance > tolerance && how.calm.count(step) > 0)
      tolerance = std::max(tolerance, diagnose::kCorner);
    ledger.tensor_apart(name, {step, distance, tolerance});
    ledger.distance(step, rank, what, distance, tolerance, summary_text(x), summary_text(y));
  }
}

// Steps that one run alone has, of those that both made.
template <class T>
void tell_lonely_steps(const Pair& pair, const BySteps<T>& a, const BySteps<T>& b,
                       std::int64_t from, Ledger& ledger) {
  for (const auto& [step, events] : a)
    if (step >= from && step < pair.updates() && b.count(step) == 0) ledger.only_in_a(step);
  for (const auto& [step, events] : b)
    if (step >= from && step < pair.updates() && a.count(step) == 0) ledger.only_in_b(step);
}

template <class T>
const T* last_of(const Events<T>& events, std::size_t rank) {
  return rank < events.size() && !events[rank].empty() ? events[rank].back() : nullptr;
}

// Where there are other ranks: replicas must be equal, then the first of each run stands for all.
template <class T>
void compare_replicas(const diagnose::Run& run, char name, std::int64_t step,
                      const Events<T>& events, const Values& how, Ledger& ledger) {
  const auto* first = last_of(events, 0);
  for (std::size_t r = 1; first && r < events.size(); ++r) {
    const auto* other = last_of(events, r);
    if (other == nullptr) continue;
    for (std::size_t i = 0; i < std::min(first->values.size(), other->values.size()); ++i) {
      const auto &x = first->values[i], &y = other->values[i];
      if (x.hash == y.hash || x.sketch.empty() || y.sketch.empty()) continue;
      const auto scale = std::max(x.norm, y.norm);
      if (scale > 0 && apart(x, y) / scale <= diagnose::kReplicaTolerance) continue;
      ledger.texts(step, -1,
                   how.of + name_at(how.names, i) + " on ranks 0 and " +
                       std::to_string(run.numbers[r]) + " of " + name,
                   summary_text(x), summary_text(y), true);
      return;
    }
  }
}

// Steps from `from` to `until`. `replicated`: all ranks must hold the same.
template <class T>
void compare_events(const Pair& pair, std::int64_t from, std::int64_t until, const Values& how,
                    bool replicated, Ledger& ledger) {
  const auto a = events_by_step<T>(pair.a), b = events_by_step<T>(pair.b);
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (step < from || step > until || in_b == b.end()) continue;
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto* x = last_of(in_a, r);
      const auto* y = last_of(in_b->second, r);
      if (x && y) compare_values(pair, step, pair.rank(r), how, x->values, y->values, ledger);
    }
    if (pair.same_ranks || !replicated) continue;
    compare_replicas(pair.a, 'A', step, in_a, how, ledger);
    compare_replicas(pair.b, 'B', step, in_b->second, how, ledger);
  }
  if (from >= 0) tell_lonely_steps(pair, a, b, from, ledger);
}

template <class T>
bool has_in(const diagnose::Run& run, std::int64_t from, std::int64_t until) {
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<T>())
      if (at.step >= from && at.step <= until) return true;
  return false;
}

std::vector<std::string> buffer_names(const diagnose::Run& run) {
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Buffers>()) return at.event->names;
  return {};
}

Values of_buffers(const Pair& pair) {
  const auto names = buffer_names(pair.a);
  return {diagnose::Quantity::buffer, "buffer ", names, places_in_b(names, buffer_names(pair.b))};
}

constexpr std::int64_t kEnd = INT64_MAX;

// What all ranks hold together: the mean of their gradients, weighted by the samples behind them where those are known.
// Its norm is the projections'; it has no hash.
Summaries mean_of(const Events<trace::LocalGradients>& events) {
  Summaries mean;
  double weights = 0;
  bool known = true;
  for (std::size_t r = 0; r < events.size(); ++r)
    if (const auto* of = last_of(events, r)) known = known && of->samples > 0;
  for (std::size_t r = 0; r < events.size(); ++r) {
    const auto* of = last_of(events, r);
    if (of == nullptr) continue;
    const double weight = known ? static_cast<double>(of->samples) : 1;
    weights += weight;
    mean.resize(std::max(mean.size(), of->values.size()));
    for (std::size_t i = 0; i < of->values.size(); ++i) {
      auto& to = mean[i].sketch;
      to.resize(std::max(to.size(), of->values[i].sketch.size()));
      for (std::size_t p = 0; p < of->values[i].sketch.size(); ++p)
        to[p] += weight * of->values[i].sketch[p];
    }
  }
  for (auto& each : mean) {
    double squares = 0;
    for (auto& value : each.sketch) value /= weights, squares += value * value;
    if (!each.sketch.empty())
      each.norm = std::sqrt(squares / static_cast<double>(each.sketch.size()));
  }
  return mean;
}

}  // namespace

void compare_initial(const Pair& pair, Ledger& ledger) {
  ledger.recorded(has_in<trace::Parameters>(pair.a, kBefore, kBefore),
                  has_in<trace::Parameters>(pair.b, kBefore, kBefore));
  if (!models_fit(pair)) return;
  compare_events<trace::Parameters>(
      pair, kBefore, kBefore, of_parameters(pair, diagnose::Quantity::parameter, ""), true, ledger);
  compare_events<trace::Buffers>(pair, kBefore, kBefore, of_buffers(pair), true, ledger);
}

void compare_local_gradients(const Pair& pair, const std::set<std::int64_t>& calm, Ledger& ledger) {
  ledger.recorded(has<trace::LocalGradients>(pair.a), has<trace::LocalGradients>(pair.b));
  if (!models_fit(pair)) return;
  const auto how = of_parameters(pair, diagnose::Quantity::gradient, "local gradient of ", calm);
  if (pair.same_ranks) {
    compare_events<trace::LocalGradients>(pair, 0, kEnd, how, false, ledger);
    return;
  }
  const auto a = events_by_step<trace::LocalGradients>(pair.a),
             b = events_by_step<trace::LocalGradients>(pair.b);
  const auto mean =
      of_parameters(pair, diagnose::Quantity::gradient, "mean of the local gradients of ", calm);
  for (const auto& [step, in_a] : a)
    if (const auto in_b = b.find(step); in_b != b.end())
      compare_values(pair, step, -1, mean, mean_of(in_a), mean_of(in_b->second), ledger);
  tell_lonely_steps(pair, a, b, 0, ledger);
}

void compare_reduced_gradients(const Pair& pair, const std::set<std::int64_t>& calm,
                               Ledger& ledger) {
  ledger.recorded(has<trace::ReducedGradients>(pair.a), has<trace::ReducedGradients>(pair.b));
  if (!models_fit(pair)) return;
  compare_events<trace::ReducedGradients>(
      pair, 0, kEnd,
      of_parameters(pair, diagnose::Quantity::gradient, "reduced gradient of ", calm), true,
      ledger);
}

void compare_updates(const Pair& pair, Ledger& ledger) {
  ledger.recorded(has_in<trace::Parameters>(pair.a, 0, kEnd) || pair.updates_a > 0,
                  has_in<trace::Parameters>(pair.b, 0, kEnd) || pair.updates_b > 0);
  if (models_fit(pair))
    compare_events<trace::Parameters>(
        pair, 0, kEnd, of_parameters(pair, diagnose::Quantity::parameter, ""), true, ledger);
  const auto text = [](const trace::ScaledStep& of) { return of.updates ? "made" : "left out"; };
  for_each_in_both<trace::ScaledStep>(
      pair, [&](std::int64_t step, int rank, const auto& a, const auto& b) {
        ledger.texts(step, rank, "update that a gradient scaler decides on", text(a), text(b),
                     a.updates != b.updates);
      });
  if (pair.updates_a == pair.updates_b || pair.updates() == 0) return;
  ledger.texts(pair.updates(), -1, "number of updates", plural(pair.updates_a, "update"),
               plural(pair.updates_b, "update"), true);
}

void compare_buffers(const Pair& pair, Ledger& ledger) {
  ledger.recorded(has_in<trace::Buffers>(pair.a, 0, kEnd), has_in<trace::Buffers>(pair.b, 0, kEnd));
  compare_events<trace::Buffers>(pair, 0, kEnd, of_buffers(pair), false, ledger);
}

}  // namespace lockstep::compare
