#include <lockstep/base/text.h>
#include <lockstep/flight/diagnosis.h>
#include <lockstep/flight/words.h>

namespace lockstep::flight {
namespace {

constexpr std::size_t kMostFindings = 20;  // told of; JSON has them all
constexpr std::size_t kMostNotes = 10;

std::string where(const Finding& finding) {
  auto text = ranks_named(finding.ranks);
  if (!finding.group.empty()) text += ", group " + finding.group;
  if (finding.sequence >= 0) text += ", sequence " + std::to_string(finding.sequence);
  if (!finding.operation.empty()) text += ", " + shown(finding.operation);
  return text;
}

}  // namespace

std::string to_text(const Diagnosis& diagnosis) {
  std::string text;
  const auto& findings = diagnosis.findings;
  for (std::size_t i = 0; i < findings.size() && i < kMostFindings; ++i) {
    const auto& finding = findings[i];
    text += finding.pitfall + (finding.differs.empty() ? "" : " (" + finding.differs + ")") +
            (finding.follows ? ", which follows from the above" : "") + "\n";
    text += wrapped(where(finding), "    ");
    text += wrapped(finding.evidence, "    ");
  }
  if (findings.size() > kMostFindings)
    text +=
        "And " + plural(findings.size() - kMostFindings, "finding") + " more; --json has all.\n";
  if (findings.empty()) text += "Nothing found: the ranks agree on every call they still hold.\n";
  text += wrapped("Read " + plural(diagnosis.dumps, "dump") + " of PyTorch's flight recorder, " +
                      plural(diagnosis.entries, "call") + " in " +
                      plural(diagnosis.groups, "group") + ".",
                  "");
  for (std::size_t i = 0; i < diagnosis.notes.size() && i < kMostNotes; ++i)
    text += wrapped("Note: " + diagnosis.notes[i], "");
  if (diagnosis.notes.size() > kMostNotes)
    text +=
        "And " + plural(diagnosis.notes.size() - kMostNotes, "note") + " more; --json has all.\n";
  return text;
}

}  // namespace lockstep::flight
