#include <lockstep/base/text.h>
#include <lockstep/report/lesson_report.h>

#include <iomanip>
#include <set>
#include <sstream>

namespace lockstep::report {
namespace {

constexpr std::size_t kHang = 2;

std::string figure(double value) {
  std::ostringstream text;
  text << std::setprecision(6) << value;
  return text.str();
}

// "ranks 0 and 1, step 3"
std::string where(const diagnose::Finding& finding, const std::string& participants) {
  const bool one = finding.ranks.size() == 1;
  std::vector<std::string> parts;
  if (!finding.ranks.empty())
    parts.push_back(participants.substr(0, participants.size() - (one ? 1 : 0)) + " " +
                    list(finding.ranks));
  if (finding.step >= 0) parts.push_back("step " + std::to_string(finding.step));
  std::string text;
  for (const auto& part : parts) text += ", " + part;
  return text;
}

std::string oracle_text(const OracleResult& oracle) {
  std::ostringstream text;
  text << "      oracle: " << oracle.metric << ": expected " << figure(oracle.expected);
  if (oracle.tolerance > 0) text << " within " << figure(oracle.tolerance);
  text << ", observed " << figure(oracle.observed) << (oracle.manifested ? "" : " (right)") << "\n";
  return text.str();
}

// "0.412 0.408", one per rank, of the last epoch.
std::string last_of_each(const std::vector<std::vector<double>>& by_rank) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  for (const auto& values : by_rank)
    if (!values.empty()) text << " " << values.back();
  return text.str();
}

}  // namespace

std::string to_text(const Variant& variant) {
  std::ostringstream text;
  text << "  " << std::left << std::setw(33) << variant.name << " " << std::setw(10)
       << to_string(variant.kind) << std::setw(10) << to_string(variant.ending) << std::fixed
       << std::setprecision(1) << std::right << std::setw(4) << variant.seconds << " s  "
       << variant.verdict << "\n";
  if (!variant.what.empty()) text << "      " << variant.what << "\n";
  if (!variant.reason.empty()) {
    std::istringstream lines(variant.reason);
    for (std::string line; std::getline(lines, line);) text << "      " << line << "\n";
  }
  std::set<std::string> told;  // pitfalls may share an oracle
  for (const auto& oracle : variant.oracles)
    if (const auto line = oracle_text(oracle); told.insert(line).second) text << line;
  for (const auto& finding : variant.findings)
    text << "      " << diagnose::to_string(finding.severity) << ": " << finding.pitfall
         << where(finding, variant.participants) << "\n        " << finding.evidence << "\n";
  const std::string by = variant.participants == "devices" ? "" : " by rank";
  const auto losses = last_of_each(variant.losses);
  if (!losses.empty()) text << "      last loss" << by << ":" << losses << "\n";
  const auto accuracy = last_of_each(variant.accuracy);
  if (!accuracy.empty()) text << "      accuracy" << by << ":" << accuracy << "\n";
  return filled(text.str(), kHang);
}

std::string to_text(const LessonReport& comparison) {
  int expected = 0, skipped = 0;
  for (const auto& variant : comparison.variants) {
    expected += variant.verdict == "as-expected";
    skipped += variant.verdict == "skipped";
  }
  std::ostringstream text;
  text << comparison.lesson << ": " << expected << " of " << comparison.variants.size()
       << " variants as expected";
  if (skipped > 0) text << ", " << skipped << " skipped";
  const auto& environment = comparison.environment;
  text << " (seed " << environment.seed << ", " << environment.data << ")\n";
  return filled(text.str(), kHang);
}

}  // namespace lockstep::report
