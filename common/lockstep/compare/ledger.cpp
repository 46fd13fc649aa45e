#include <lockstep/compare/ledger.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace lockstep::compare {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  char text[40];
  std::snprintf(text, sizeof text, "%.7g", value);
  return text;
}

void Ledger::recorded(bool in_a, bool in_b) {
  result_.in_a = result_.in_a || in_a;
  result_.in_b = result_.in_b || in_b;
}

void Ledger::rounding() {
  if (result_.relation == Relation::equal) result_.relation = Relation::rounding;
}

// The first one stays: at the earliest step, the first that was looked at. The same of other ranks joins it.
void Ledger::differ(Difference difference, int rank) {
  result_.relation = Relation::different;
  compared(difference.step);
  differing_.insert(difference.step);
  auto& first = result_.first;
  if (!first || difference.step < first->step) {
    first = std::move(difference);
    if (rank >= 0) first->ranks = {rank};
    others_.clear();
  } else if (difference.step == first->step) {
    if (rank >= 0 && difference.what == first->what) {
      if (std::find(first->ranks.begin(), first->ranks.end(), rank) == first->ranks.end())
        first->ranks.push_back(rank);
    } else {
      others_.insert(difference.what);
    }
  }
}

void Ledger::texts(std::int64_t step, int rank, const std::string& what, const std::string& a,
                   const std::string& b, bool different) {
  compared(step);
  if (different) differ({.step = step, .ranks = {}, .what = what, .a = a, .b = b}, rank);
}

void Ledger::distance(std::int64_t step, int rank, const std::string& what, double distance,
                      double tolerance, const std::string& a, const std::string& b) {
  compared(step);
  rounding();
  auto& largest = distances_[step];
  if (distance >= largest.distance) largest = {step, distance, tolerance};
  if (!(distance <= tolerance))
    differ({.step = step,
            .ranks = {},
            .what = what,
            .a = a,
            .b = b,
            .distance = distance,
            .tolerance = tolerance},
           rank);
}

void Ledger::numbers(std::int64_t step, int rank, const std::string& what, double a, double b,
                     double tolerance) {
  compared(step);
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  const bool finite = std::isfinite(a) && std::isfinite(b);
  const double apart = finite ? std::abs(a - b) / std::max(std::abs(a), std::abs(b)) : 1;
  distance(step, rank, what, apart, finite ? tolerance : 0, number_text(a), number_text(b));
}

void Ledger::tensor(const std::string& name) {
  if (tensors_.try_emplace(name).second) names_.push_back(name);
}

void Ledger::tensor_apart(const std::string& name, const AspectResult::Distance& apart) {
  auto& largest = tensors_[name][apart.step];
  if (apart.distance >= largest.distance) largest = apart;
}

AspectResult Ledger::done() const {
  auto result = result_;
  result.steps.assign(steps_.begin(), steps_.end());
  result.differing_steps = differing_.size();
  result.more = others_.size();
  const auto in_order = [](const ByStep& distances) {
    std::vector<AspectResult::Distance> all;
    for (const auto& [step, largest] : distances) all.push_back(largest);
    return all;
  };
  result.distances = in_order(distances_);
  for (const auto& name : names_) result.tensors.push_back({name, in_order(tensors_.at(name))});
  return result;
}

}  // namespace lockstep::compare
