#include <lockstep/diagnose/detector.h>
#include <lockstep/matrix/score.h>

#include <algorithm>
#include <cmath>

namespace lockstep::matrix {
namespace {

const Named* named(const Truth& truth, const Answer& answer) {
  for (const auto& finding : answer.findings)
    if (finding.pitfall == truth.pitfall) return &finding;
  return nullptr;
}

bool is_exact(const Truth& truth, const Named& finding) {
  auto expected = truth.ranks, got = finding.ranks;
  std::sort(expected.begin(), expected.end());
  std::sort(got.begin(), got.end());
  if (!expected.empty() && got != expected) return false;
  return !truth.step || finding.step == *truth.step;
}

bool has_violation(const Answer& answer) {
  return std::any_of(answer.findings.begin(), answer.findings.end(),
                     [](const Named& finding) { return !finding.advice; });
}

Cell judge_healthy(const Answer& answer) {
  if (has_violation(answer)) return Cell::false_alarm;
  return answer.state == Answer::State::not_triggered ? Cell::not_triggered : Cell::clean;
}

Cell judge_faulty(const Truth& truth, const Answer& answer, const Families& families) {
  if (const auto* found = named(truth, answer))
    return is_exact(truth, *found) ? Cell::exact : Cell::slug_only;
  const auto is_kin = [&](const Named& finding) {
    const auto family = families.find(finding.pitfall);
    return family == families.end() ? diagnose::is_generic(finding.pitfall)
                                    : family->second == truth.family;
  };
  if (std::any_of(answer.findings.begin(), answer.findings.end(), is_kin)) return Cell::family_only;
  if (!answer.findings.empty()) return Cell::wrong_name;
  return answer.state == Answer::State::not_triggered ? Cell::not_triggered : Cell::missed;
}

// Wilson's score interval: where the normal test of a proportion p accepts what was seen.
double wilson(const Share& share, double sign) {
  constexpr double z = 1.959963984540054;  // 97.5 % of the normal distribution
  const double n = share.trials, p = share.successes / n;
  const double center = p + z * z / (2 * n);
  const double spread = z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return (center + sign * spread) / (1 + z * z / n);
}

double median(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  const auto upper = static_cast<double>(values[middle]);
  return values.size() % 2 == 1 ? upper : (static_cast<double>(values[middle - 1]) + upper) / 2;
}

}  // namespace

std::string to_string(Cell cell) {
  switch (cell) {
    case Cell::exact:
      return "exact";
    case Cell::slug_only:
      return "slug-only";
    case Cell::family_only:
      return "family-only";
    case Cell::wrong_name:
      return "wrong-name";
    case Cell::missed:
      return "missed";
    case Cell::clean:
      return "clean";
    case Cell::false_alarm:
      return "false-alarm";
    case Cell::not_triggered:
      return "not-triggered";
    case Cell::not_applicable:
      return "not-applicable";
    case Cell::error:
      return "error";
    case Cell::skipped:
      return "skipped";
  }
  return "error";
}

Cell judge(const Truth& truth, const Answer& answer, const Families& families) {
  if (!truth.applicable) return Cell::not_applicable;
  if (answer.state == Answer::State::skipped) return Cell::skipped;
  if (answer.state == Answer::State::error) return Cell::error;
  return truth.pitfall.empty() ? judge_healthy(answer) : judge_faulty(truth, answer, families);
}

bool is_wrong(const Truth& truth, Cell cell) {
  switch (cell) {
    case Cell::exact:
    case Cell::clean:
    case Cell::not_applicable:
    case Cell::skipped:
      return false;
    case Cell::not_triggered:
      return !truth.pitfall.empty();
    default:
      return true;
  }
}

int noise(const Truth& truth, const Answer& answer) {
  return static_cast<int>(
      std::count_if(answer.findings.begin(), answer.findings.end(), [&](const Named& finding) {
        return !finding.advice && (truth.pitfall.empty() || finding.pitfall != truth.pitfall);
      }));
}

std::optional<std::int64_t> steps_until_found(const Truth& truth, const Answer& answer) {
  const auto* found = truth.pitfall.empty() ? nullptr : named(truth, answer);
  if (found == nullptr || !truth.step || found->step < 0) return std::nullopt;
  return found->step - *truth.step;
}

std::optional<double> Share::value() const {
  if (trials == 0) return std::nullopt;
  return static_cast<double>(successes) / trials;
}

std::optional<double> Share::low() const {
  if (trials == 0) return std::nullopt;
  return successes == 0 ? 0 : wilson(*this, -1);
}

std::optional<double> Share::high() const {
  if (trials == 0) return std::nullopt;
  return successes == trials ? 1 : wilson(*this, +1);
}

void Share::count(bool success) {
  successes += success ? 1 : 0;
  ++trials;
}

Totals score(const std::vector<Scored>& runs, const Families& families) {
  Totals totals;
  std::vector<std::int64_t> steps;
  int findings_beside = 0;
  for (const auto& [truth, answer] : runs) {
    const auto cell = judge(truth, answer, families);
    ++totals.cells[cell];
    if (cell == Cell::not_applicable || cell == Cell::skipped) continue;
    const int beside = noise(truth, answer);
    findings_beside += beside;
    totals.noisy.count(beside > 0);
    totals.right += cell == Cell::exact || cell == Cell::clean ? 1 : 0;
    totals.wrong += is_wrong(truth, cell) ? 1 : 0;
    if (truth.pitfall.empty()) {
      // A run that it could not look at is no proof of its silence.
      if (cell == Cell::clean || cell == Cell::false_alarm)
        totals.false_alarms.count(cell == Cell::false_alarm);
      continue;
    }
    totals.exact.count(cell == Cell::exact);
    totals.slug.count(cell == Cell::exact || cell == Cell::slug_only);
    totals.family.count(cell == Cell::exact || cell == Cell::slug_only ||
                        cell == Cell::family_only);
    if (const auto needed = steps_until_found(truth, answer)) steps.push_back(*needed);
  }
  totals.not_looked_at = totals.noisy.trials - totals.right - totals.wrong;
  if (totals.noisy.trials > 0)
    totals.noise_a_run = static_cast<double>(findings_beside) / totals.noisy.trials;
  if (!steps.empty()) totals.median_steps = median(steps);
  return totals;
}

}  // namespace lockstep::matrix
