#include <lockstep/base/text.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/text.h>

#include <algorithm>
#include <map>

namespace lockstep::diagnose {
namespace {

std::string where(const Finding& finding) {
  std::string text;
  if (!finding.ranks.empty()) text = lockstep::ranks_text(finding.ranks);
  if (finding.step >= 0) text += fmt::format("{}step {}", text.empty() ? "" : ", ", finding.step);
  if (finding.sequence >= 0)
    text += fmt::format("{}sequence {}", text.empty() ? "" : ", ", finding.sequence);
  return text;
}

std::string below(const std::string& folder, const std::string& file) {
  const bool is_below = !folder.empty() && file.starts_with(folder + "/");
  return is_below ? file.substr(folder.size() + 1) : file;
}

// "since step 8 (it held at step 4), ranks 0 and 1: "
std::string since(const Line& line) {
  std::vector<std::string> parts;
  if (line.step >= 0)
    parts.push_back(
        fmt::format("since step {}{}", line.step,
                    line.after >= 0 ? fmt::format(" (it held at step {})", line.after) : ""));
  else if (line.apart)
    parts.push_back("before training");
  if (!line.ranks.empty()) parts.push_back(lockstep::ranks_text(line.ranks));
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text + (text.empty() ? "" : ": ");
}

}  // namespace

std::string to_text(const Line& line) {
  constexpr std::size_t kHead = 10;
  const std::string sentence = text_of(line.equation).sentence;
  std::string head = "  held    ", text = sentence, below;
  switch (line.standing) {
    case Standing::held:
      text += fmt::format(" ({})", line.looked_at);
      break;
    case Standing::broken:
      head = line.apart ? "  differ  " : "  BROKEN  ";  // in each of two runs it may hold
      below = since(line) + list(line.broken_by) + (line.apart ? ": " + line.evidence : "");
      break;
    case Standing::open:
      head = "  ?       ";
      below = since(line) + line.reason;
      break;
    case Standing::idle:
      head = "  -       ";
      text += fmt::format(" ({})", line.reason);
      break;
  }
  auto lines = wrapped(text, std::string(kHead, ' '));
  lines.replace(0, kHead, head);
  return lines + (below.empty() ? "" : wrapped(below, std::string(kHead + 2, ' ')));
}

namespace {

// Which ranks are compared, where that is not all with all.
std::string who_is_compared(const Diagnosis& diagnosis) {
  constexpr std::size_t kMost = 8;
  std::string text;
  const auto& groups = diagnosis.replica_groups;
  const bool alone = std::all_of(groups.begin(), groups.end(),
                                 [](const auto& group) { return group.size() == 1; });
  if (groups.size() > 1 && alone)
    text =
        wrapped("Ranks are not compared: each trains a model, or a part of one, of its own.", "");
  else if (groups.size() > 1) {
    text = "Ranks are compared with those that train the same model: ";
    for (std::size_t i = 0; i < std::min(kMost, groups.size()); ++i)
      text += (i > 0 ? "; " : "") + lockstep::ranks_text(groups[i]);
    if (groups.size() > kMost) text += fmt::format("; and {} groups more", groups.size() - kMost);
    text = wrapped(text + ".", "");
  }
  if (!diagnosis.sharded_by.empty())
    text += wrapped(
        fmt::format(
            "Each rank holds a part of the model ({}): the values of its parts are not compared.",
            diagnosis.sharded_by),
        "");
  return text;
}

// What would tell the nearest pitfalls from it. Of advice, which may be a choice, only what was not looked for.
std::string what_is_near(const Finding& finding) {
  std::string text;
  std::map<State, std::vector<std::string>> looked_for;
  for (const auto& one : finding.nearest) {
    if (one.state == State::not_triggered)
      text += wrapped(
          fmt::format("or {}, if {} (not looked for: {})", one.pitfall, one.sign, one.reason),
          "    ");
    else if (finding.severity == Severity::violation)
      looked_for[one.state].push_back(one.pitfall);
  }
  const std::pair<State, const char*> kSaid[] = {{State::found, "also found: "},
                                                 {State::clean, "no sign of: "},
                                                 {State::not_applicable, "cannot be: "}};
  for (const auto& [state, said] : kSaid)
    if (looked_for.count(state) > 0) text += wrapped(said + list(looked_for[state]), "    ");
  return text;
}

// Where it is not the line of all ranks that the finding names.
std::string whose(const Place& place, const Finding& finding) {
  constexpr std::size_t kMost = 8;
  if (place.ranks == finding.ranks) return "";
  const auto count = place.ranks.size();
  return fmt::format(
      " ({})", count > kMost ? fmt::format("{} ranks", count) : lockstep::ranks_text(place.ranks));
}

}  // namespace

std::string to_text(std::span<const Finding> findings, const std::string& folder) {
  std::string text;
  for (const auto& finding : findings) {
    text += fmt::format("{}: {}\n", to_string(finding.severity), finding.pitfall);
    if (const auto place = where(finding); !place.empty()) text += wrapped(place, "    ");
    text += wrapped(finding.evidence, "    ");
    if (!finding.accounts_for.empty())
      text += wrapped("also found, and follows from this: " + list(finding.accounts_for), "    ");
    for (const auto& place : finding.places)
      text += fmt::format("    {}:{}{}: {}\n{}", below(folder, place.file), place.line,
                          whose(place, finding), place.source,
                          place.raised.empty() ? "" : fmt::format("        {}\n", place.raised));
    text += what_is_near(finding);
  }
  return text;
}

std::string to_text(const Diagnosis& diagnosis, const std::string& folder) {
  std::string text = diagnosis.ledger.empty() ? "" : "What must hold, and whether it did:\n";
  for (const auto& line : diagnosis.ledger) text += to_text(line);
  text += to_text(diagnosis.findings, folder);
  for (const auto& sentence : diagnosis.incomplete)
    text += wrapped(fmt::format("Not all was recorded: {}.", sentence), "");
  return text + who_is_compared(diagnosis);
}

}  // namespace lockstep::diagnose
