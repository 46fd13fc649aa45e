#include <lockstep/base/text.h>
#include <lockstep/compare/seen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace lockstep::compare {
namespace {

std::string nearest_text(const Distances& distances) {
  if (distances.empty()) return "";
  const auto& [step, nearest] = *std::ranges::max_element(
      distances, {}, [](const auto& at) { return at.second.distance / at.second.tolerance; });
  return ", nearest to its tolerance " +
         (step < 0 ? "before training" : "at step " + std::to_string(step)) + ": " +
         number_text(nearest.distance) + " of " + number_text(nearest.tolerance);
}

std::string evidence_text(const diagnose::Apart& apart, std::size_t others) {
  auto text = in_both_text(apart.a, apart.b);
  if (apart.tolerance > 0)
    text +=
        "; apart by " + number_text(apart.distance) + ", tolerance " + number_text(apart.tolerance);
  if (others > 0)
    text += "; and " + plural(static_cast<std::int64_t>(others), "more difference") + " there";
  return text;
}

// Why nothing was compared: what a diagnosis of each run says that it has.
void say_why_not(diagnose::Line& line, const Pair& pair) {
  const auto a = diagnose::looked_at(pair.a, line.equation),
             b = diagnose::looked_at(pair.b, line.equation);
  const auto why = [](const auto& looked) {
    return looked.idle.empty() ? looked.missing : looked.idle;
  };
  if (a.at > 0 && b.at > 0) {
    line.reason =
        "A and B recorded nothing of it that can be compared, or not at the same step: record both "
        "in the same way, with the same --every, --from and --to";
  } else if (a.at > 0 || b.at > 0) {
    line.reason = a.at > 0 ? "in A only; of B: " + why(b) : "in B only; of A: " + why(a);
  } else {
    line.reason = why(a);
    if (!a.idle.empty()) line.standing = diagnose::Standing::idle;
  }
}

}  // namespace

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  char text[40];
  std::snprintf(text, sizeof text, "%.7g", value);
  return text;
}

std::string in_both_text(const std::string& a, const std::string& b) {
  return a + " in A, " + b + " in B";
}

// The first one stays: at the earliest step, the first that was looked at. The same of other ranks joins it.
void Seen::differ(At at, const std::string& what, const diagnose::Apart& apart) {
  compared(at.step);
  rounding();
  differing_.insert(at.step);
  auto& line = seen_.line;
  if (!seen_.parts() || at.step < line.step) {
    line = {.standing = diagnose::Standing::broken,
            .step = at.step,
            .broken_by = {what},
            .apart = apart};
    if (at.rank >= 0) line.ranks = {at.rank};
    others_.clear();
  } else if (at.step == line.step && (at.rank < 0 || what != line.broken_by.front())) {
    others_.insert(what);
  } else if (at.step == line.step && std::ranges::find(line.ranks, at.rank) == line.ranks.end()) {
    line.ranks.push_back(at.rank);
  }
}

void Seen::texts(At at, const std::string& what, const std::string& a, const std::string& b,
                 bool different) {
  compared(at.step);
  if (different) differ(at, what, {.a = a, .b = b});
}

void Seen::distance(At at, const std::string& what, const diagnose::Apart& apart) {
  compared(at.step);
  rounding();
  auto& largest = seen_.distances[at.step];
  if (apart.distance >= largest.distance) largest = {apart.distance, apart.tolerance};
  if (!(apart.distance <= apart.tolerance)) differ(at, what, apart);
}

void Seen::numbers(At at, const std::string& what, double a, double b, double tolerance) {
  compared(at.step);
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  const bool finite = std::isfinite(a) && std::isfinite(b);
  const double apart = finite ? std::abs(a - b) / std::max(std::abs(a), std::abs(b)) : 1;
  distance(at, what, {number_text(a), number_text(b), apart, finite ? tolerance : 0});
}

void Seen::tensor(const std::string& name) {
  if (tensors_.try_emplace(name, seen_.tensors.size()).second) seen_.tensors.push_back({name, {}});
}

void Seen::tensor_apart(const std::string& name, std::int64_t step, Distance apart) {
  auto& largest = seen_.tensors[tensors_.at(name)].distances[step];
  if (apart.distance >= largest.distance) largest = apart;
}

std::optional<std::int64_t> Seen::parts_at() const {
  return seen_.parts() ? std::optional(seen_.line.step) : std::nullopt;
}

Compared Seen::done(diagnose::Equation equation, const Pair& pair) const {
  auto result = seen_;
  auto& line = result.line;
  line.equation = equation;
  line.reason = why_not_;
  if (!result.steps.empty())
    line.looked_at = plural(static_cast<std::int64_t>(result.steps.size()), "step");
  if (result.parts()) {
    const auto first = result.steps.find(line.step);
    if (first != result.steps.begin()) line.after = *std::prev(first);
    line.evidence = evidence_text(*line.apart, others_.size());
    line.looked_at += ", of which " + std::to_string(differing_.size()) + " differ";
  } else if (!result.steps.empty()) {
    line.standing = diagnose::Standing::held;
    line.looked_at += result.to_the_bit ? ", equal to the bit"
                                        : ", equal to rounding" + nearest_text(result.distances);
  } else if (line.reason.empty()) {
    say_why_not(line, pair);
  }
  return result;
}

}  // namespace lockstep::compare
