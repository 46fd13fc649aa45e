#include <lockstep/report/comparison.h>

#include <iomanip>
#include <sstream>

namespace lockstep::report {
namespace {

std::string figure(double value) {
  std::ostringstream text;
  text << std::setprecision(6) << value;
  return text.str();
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::ostringstream text;
  for (std::size_t i = 0; i < ranks.size(); ++i) text << (i ? "," : "") << ranks[i];
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
  text << "  " << std::left << std::setw(38) << variant.name << " " << std::setw(11)
       << to_string(variant.form) << std::setw(11) << to_string(variant.ending) << std::fixed
       << std::setprecision(1) << std::right << std::setw(5) << variant.seconds << " s  "
       << variant.verdict << "\n";
  if (!variant.what.empty()) text << "      " << variant.what << "\n";
  if (!variant.reason.empty()) {
    std::istringstream lines(variant.reason);
    for (std::string line; std::getline(lines, line);) text << "      " << line << "\n";
  }
  for (const auto& oracle : variant.oracles)
    if (variant.form == Form::broken || oracle.manifested)
      text << "      oracle: " << oracle.metric << ": expected " << figure(oracle.expected)
           << ", observed " << figure(oracle.observed)
           << (oracle.manifested ? "" : "  (as it should be)") << "\n";
  for (const auto& finding : variant.findings) {
    text << "      " << diagnose::to_string(finding.severity) << ": " << finding.pitfall
         << ", rank " << ranks_text(finding.ranks);
    if (finding.step >= 0) text << ", step " << finding.step;
    text << "\n        " << finding.evidence << "\n";
  }
  const auto losses = last_of_each(variant.losses);
  if (!losses.empty()) text << "      last loss by rank:" << losses << "\n";
  const auto accuracy = last_of_each(variant.accuracy);
  if (!accuracy.empty()) text << "      accuracy by rank:" << accuracy << "\n";
  return text.str();
}

std::string to_text(const Comparison& comparison) {
  int expected = 0, skipped = 0;
  for (const auto& variant : comparison.variants) {
    expected += variant.verdict == "as-expected";
    skipped += variant.verdict == "skipped";
  }
  std::ostringstream text;
  text << comparison.lesson << ": " << expected << " of " << comparison.variants.size()
       << " forms as expected";
  if (skipped > 0) text << ", " << skipped << " skipped";
  const auto& environment = comparison.environment;
  text << " (" << environment.backend << ", world size " << environment.world_size << ", seed "
       << environment.seed << ", " << environment.data << ")\n";
  return text.str();
}

}  // namespace lockstep::report
