#include <lockstep/base/text.h>
#include <lockstep/matrix/report.h>

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep::matrix {
namespace {

using nlohmann::json;

constexpr int kColumn = 12, kShare = 33;  // characters

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

// A row of each pitfall, and the shares of each column.
std::string beside_text(const Matrix& matrix) {
  const auto compared = compare(matrix.runs, matrix.families, *matrix.beside);
  std::size_t widest = 0;
  for (const auto& [slug, row] : compared.rows) widest = std::max(widest, slug.size());
  std::ostringstream text;
  const auto row = [&](const std::string& name, const std::vector<std::string>& words) {
    text << std::left << std::setw(static_cast<int>(widest) + 2) << name;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) text << std::setw(kColumn) << words[i];
    text << words.back() << "\n";
  };
  text << "beside PyTorch's own means (" << matrix.beside->source
       << "), on twins of the lessons; ours is the worst of a pitfall's runs\n";
  row("", compared.columns);
  for (const auto& [slug, said] : compared.rows) {
    std::vector<std::string> words;
    for (const auto& one : said) words.push_back(one ? to_string(*one) : "-");
    row(slug, words);
  }
  text << "of those that were asked of ours\n  " << std::setw(kColumn) << "" << std::setw(kShare)
       << "named" << std::setw(kShare) << "named or noticed"
       << "false alarms\n";
  for (std::size_t column = 0; column < compared.columns.size(); ++column) {
    const auto& total = compared.totals[column];
    text << "  " << std::setw(kColumn) << compared.columns[column] << std::setw(kShare)
         << share_text(total.named) << std::setw(kShare) << share_text(total.noticed)
         << share_text(total.false_alarms) << "\n";
  }
  return text.str();
}

json beside_json(const Matrix& matrix) {
  const auto compared = compare(matrix.runs, matrix.families, *matrix.beside);
  json pitfalls = json::object(), totals = json::object();
  for (std::size_t column = 0; column < compared.columns.size(); ++column) {
    const auto& name = compared.columns[column];
    for (const auto& [slug, said] : compared.rows)
      pitfalls[slug][name] = said[column] ? json(to_string(*said[column])) : json(nullptr);
    const auto& total = compared.totals[column];
    totals[name] = {{"named", share_json(total.named)},
                    {"noticed", share_json(total.noticed)},
                    {"false_alarms", share_json(total.false_alarms)}};
  }
  return {{"source", matrix.beside->source}, {"pitfalls", pitfalls}, {"totals", totals}};
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
  if (totals.not_looked_at > 0)
    text << "note: " << plural(totals.not_looked_at, "healthy run")
         << " could not be looked at: neither right nor wrong\n";
  if (matrix.beside) text << beside_text(matrix);
  return text.str();
}

std::string to_json(const Matrix& matrix) {
  json runs = json::array(), cells = json::object();
  for (const auto& run : matrix.runs) runs.push_back(run_json(run, matrix.families));
  const auto totals = score(matrix.runs, matrix.families);
  for (const auto& [cell, times] : totals.cells) cells[to_string(cell)] = times;
  json text = {
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
  if (matrix.beside) text["beside"] = beside_json(matrix);
  return text.dump(2) + "\n";
}

}  // namespace lockstep::matrix
