#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/text.h>

#include <algorithm>

namespace lockstep::diagnose {
namespace {

std::string where(const Finding& finding) {
  std::string text;
  if (!finding.ranks.empty()) text = lockstep::ranks_text(finding.ranks);
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
  const auto named =
      std::count_if(diagnosis.rows.begin(), diagnosis.rows.end(), [&](const auto& row) {
        return std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(),
                           [&](const auto& finding) { return finding.pitfall == row.slug; });
      });
  const auto explained =
      std::count_if(diagnosis.rows.begin(), diagnosis.rows.end(),
                    [](const auto& row) { return row.verdict.state == State::found; }) -
      named;
  return text + wrapped("Of " + std::to_string(diagnosis.rows.size()) +
                            " detectors: " + std::to_string(named) + " found" +
                            (explained > 0 ? " and " + std::to_string(explained) +
                                                 " more that these account for"
                                           : "") +
                            ", " + count(State::clean) + " clean, " + count(State::not_triggered) +
                            " without the events they need, " + count(State::not_applicable) +
                            " that do not apply to this run.",
                        "");
}

}  // namespace lockstep::diagnose
