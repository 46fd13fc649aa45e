#include <lockstep/base/text.h>
#include <lockstep/matrix/report.h>

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep::matrix {
namespace {

using nlohmann::json;

json share_json(const Share& share) {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? json(*value) : json(nullptr);
  };
  return {{"successes", share.successes},
          {"trials", share.trials},
          {"value", or_null(share.value())},
          {"low", or_null(share.low())},
          {"high", or_null(share.high())}};
}

json run_json(const Scored& run, const Families& families) {
  const auto& [truth, answer] = run;
  json findings = json::array();
  for (const auto& finding : answer.findings)
    findings.push_back({{"pitfall", finding.pitfall},
                        {"severity", finding.advice ? "advice" : "violation"},
                        {"ranks", finding.ranks},
                        {"step", finding.step}});
  const auto steps = steps_until_found(truth, answer);
  return {{"name", truth.name},
          {"family", truth.family},
          {"pitfall", truth.pitfall.empty() ? json(nullptr) : json(truth.pitfall)},
          {"ranks", truth.ranks},
          {"step", truth.step ? json(*truth.step) : json(nullptr)},
          {"cell", to_string(judge(truth, answer, families))},
          {"findings", findings},
          {"reason", answer.reason},
          {"noise", noise(truth, answer)},
          {"steps_until_found", steps ? json(*steps) : json(nullptr)}};
}

std::string share_text(const Share& share) {
  std::ostringstream text;
  text << share.successes << " of " << share.trials;
  if (share.trials > 0)
    text << std::fixed << std::setprecision(3) << " = " << *share.value() << " [" << *share.low()
         << ", " << *share.high() << "]";
  return text.str();
}

std::string said(const Answer& answer) {
  std::vector<std::string> names;
  for (const auto& finding : answer.findings)
    names.push_back(finding.pitfall + (finding.advice ? " (advice)" : ""));
  return list(names);
}

}  // namespace

std::string to_text(const Matrix& matrix) {
  std::ostringstream text;
  for (const auto& run : matrix.runs)
    text << std::left << std::setw(16) << to_string(judge(run.truth, run.answer, matrix.families))
         << run.truth.name << (run.answer.findings.empty() ? "" : ": " + said(run.answer))
         << (run.answer.reason.empty() ? "" : ": " + run.answer.reason) << "\n";
  const auto totals = score(matrix.runs, matrix.families);
  text << matrix.checker << ", level " << matrix.level << "\n";
  for (const auto& [cell, times] : totals.cells)
    text << "  " << std::setw(16) << to_string(cell) << times << "\n";
  text << "  exact           " << share_text(totals.exact)
       << "  (the slug; ranks and step where the truth says them)\n"
       << "  slug            " << share_text(totals.slug) << "\n"
       << "  family          " << share_text(totals.family) << "  (or a generic finding)\n"
       << "  false alarms    " << share_text(totals.false_alarms) << "  (of healthy runs)\n"
       << "  runs with noise " << share_text(totals.noisy) << "\n";
  if (totals.median_steps) text << "  median steps until found: " << *totals.median_steps << "\n";
  return text.str();
}

std::string to_json(const Matrix& matrix) {
  json runs = json::array(), cells = json::object();
  for (const auto& run : matrix.runs) runs.push_back(run_json(run, matrix.families));
  const auto totals = score(matrix.runs, matrix.families);
  for (const auto& [cell, times] : totals.cells) cells[to_string(cell)] = times;
  const json text = {
      {"schema_version", 1},
      {"checker", matrix.checker},
      {"level", matrix.level},
      {"runs", runs},
      {"totals",
       {{"cells", cells},
        {"exact", share_json(totals.exact)},
        {"slug", share_json(totals.slug)},
        {"family", share_json(totals.family)},
        {"false_alarms", share_json(totals.false_alarms)},
        {"noisy", share_json(totals.noisy)},
        {"noise_a_run", totals.noise_a_run ? json(*totals.noise_a_run) : json(nullptr)},
        {"median_steps", totals.median_steps ? json(*totals.median_steps) : json(nullptr)}}}};
  return text.dump(2) + "\n";
}

}  // namespace lockstep::matrix
