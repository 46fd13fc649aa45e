#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/text.h>

#include <algorithm>
#include <set>

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

namespace {

// No detector of what training does had what it needs.
bool only_collectives(const Diagnosis& diagnosis) {
  const std::set<std::string> of_training{"gradient-not-the-mean", "replicas-diverged",
                                          "no-sharding", "gradients-not-zeroed"};
  int asked = 0, looked = 0;
  for (const auto& row : diagnosis.rows) {
    if (of_training.count(row.slug) == 0) continue;
    ++asked;
    looked += row.verdict.state == State::not_triggered ? 0 : 1;
  }
  return asked > 0 && looked == 0;
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
  if (diagnosis.findings.empty() && only_collectives(diagnosis))
    text += wrapped(
        "Only collectives were looked at. For gradients and updates add Probes, for data and "
        "figures "
        "also its samples and metrics.",
        "");
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
