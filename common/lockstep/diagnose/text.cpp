#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/text.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {

std::string where(const Finding& finding) {
  std::string text;
  if (!finding.ranks.empty())
    text = (finding.ranks.size() == 1 ? "rank " : "ranks ") + list(finding.ranks);
  if (finding.step >= 0)
    text += (text.empty() ? "step " : ", step ") + std::to_string(finding.step);
  if (finding.sequence >= 0)
    text += (text.empty() ? "sequence " : ", sequence ") + std::to_string(finding.sequence);
  return text;
}

}  // namespace

std::string to_text(const Diagnosis& diagnosis) {
  std::string text;
  for (const auto& finding : diagnosis.findings) {
    text += to_string(finding.severity) + ": " + finding.pitfall + "\n";
    if (const auto place = where(finding); !place.empty()) text += wrapped(place, "    ");
    text += wrapped(finding.evidence, "    ");
  }
  const auto count = [&](State state) {
    return std::to_string(
        std::count_if(diagnosis.rows.begin(), diagnosis.rows.end(),
                      [&](const auto& row) { return row.verdict.state == state; }));
  };
  if (diagnosis.findings.empty()) text += "Nothing found.\n";
  return text + wrapped("Of " + std::to_string(diagnosis.rows.size()) + " detectors: " +
                            count(State::found) + " found, " + count(State::clean) + " clean, " +
                            count(State::not_triggered) + " without the events they need, " +
                            count(State::not_applicable) + " that do not apply to this run.",
                        "");
}

}  // namespace lockstep::diagnose
