#include <lockstep/flight/diagnosis.h>
#include <lockstep/flight/words.h>

#include <sstream>

namespace lockstep::flight {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kMostFindings = 20;  // told of; JSON has them all
constexpr std::size_t kMostNotes = 10;

std::string wrapped(const std::string& text, const std::string& indent) {
  std::istringstream words(text);
  std::string result, line = indent;
  for (std::string word; words >> word;) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return result + line + "\n";
}

std::string where(const Finding& finding) {
  auto text = ranks_named(finding.ranks);
  if (!finding.group.empty()) text += ", group " + finding.group;
  if (finding.sequence >= 0) text += ", sequence " + std::to_string(finding.sequence);
  if (!finding.operation.empty()) text += ", " + shown(finding.operation);
  return text;
}

std::string count(std::size_t number, const char* one) {
  return std::to_string(number) + " " + one + (number == 1 ? "" : "s");
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
    text += "And " + count(findings.size() - kMostFindings, "finding") + " more; --json has all.\n";
  if (findings.empty()) text += "Nothing found: the ranks agree on every call they still hold.\n";
  text += wrapped("Read " + count(diagnosis.dumps, "dump") + " of PyTorch's flight recorder, " +
                      count(diagnosis.entries, "call") + " in " + count(diagnosis.groups, "group") +
                      ".",
                  "");
  for (std::size_t i = 0; i < diagnosis.notes.size() && i < kMostNotes; ++i)
    text += wrapped("Note: " + diagnosis.notes[i], "");
  if (diagnosis.notes.size() > kMostNotes)
    text +=
        "And " + count(diagnosis.notes.size() - kMostNotes, "note") + " more; --json has all.\n";
  return text;
}

}  // namespace lockstep::flight
