#include <lockstep/base/text.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/text.h>

#include <algorithm>
#include <map>

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

std::string below(const std::string& folder, const std::string& file) {
  const bool is_below = !folder.empty() && file.starts_with(folder + "/");
  return is_below ? file.substr(folder.size() + 1) : file;
}

// What a job on this library records by itself, and how a job comes to do so.
struct Source {
  const char* kind;
  const char* what;
  const char* in_cpp;
  const char* in_python;
};
constexpr Source kSources[] = {
    {"collective", "Collectives", "make the groups with lockstep::init_process_group",
     "make the groups with torch.distributed.init_process_group"},
    {"update", "Updates, and the parameters after them,",
     "make the optimizer lockstep::SGD, Adam or AdamW, or put torch's into lockstep::Watched",
     "step an optimizer of torch.optim"},
    {"samples", "Sample ids",
     "take them from lockstep::DistributedSampler, or from LibTorch's in lockstep::Watched, and "
     "train through "
     "lockstep::DistributedDataParallel or lockstep::take",
     "draw them with a DataLoader over a data set that has indices, and train through "
     "DistributedDataParallel"},
    {"loss", "Losses", "use lockstep::cross_entropy, or lockstep::tell_loss for one of your own",
     "call lockstep_torch.loss with the losses of the batch's samples"},
};

// What was not recorded, how many detectors that leaves without what they need, and how to mend it.
std::string what_is_missing(const Diagnosis& diagnosis, Language job) {
  std::string text;
  for (const auto& source : kSources) {
    if (diagnosis.recorded.count(source.kind) > 0) continue;
    const auto& all = detectors();
    const auto blind = std::count_if(all.begin(), all.end(), [&](const auto& detector) {
      return std::find(detector.needs.begin(), detector.needs.end(), source.kind) !=
             detector.needs.end();
    });
    text += wrapped(std::string(source.what) + " were not recorded, which " +
                        std::to_string(blind) + " detectors need: " +
                        (job == Language::python ? source.in_python : source.in_cpp) + ".",
                    "");
  }
  return text;
}

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
    if (groups.size() > kMost)
      text += "; and " + std::to_string(groups.size() - kMost) + " groups more";
    text = wrapped(text + ".", "");
  }
  if (!diagnosis.sharded_by.empty())
    text += wrapped("Each rank holds a part of the model (" + diagnosis.sharded_by +
                        "): parameters and gradients are not compared.",
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
          "or " + one.pitfall + ", if " + one.sign + " (not looked for: " + one.reason + ")",
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
  return " (" +
         (count > kMost ? std::to_string(count) + " ranks" : lockstep::ranks_text(place.ranks)) +
         ")";
}

}  // namespace

Language language_of(const trace::Trace& trace) {
  for (const auto& rank : trace.ranks)
    for (const auto& at : rank.all<trace::Configuration>())
      if (at.event->of == "program") return Language::python;  // which only Python jobs tell
  return Language::cpp;
}

std::string to_text(std::span<const Finding> findings, const std::string& folder) {
  std::string text;
  for (const auto& finding : findings) {
    text += to_string(finding.severity) + ": " + finding.pitfall + "\n";
    if (const auto place = where(finding); !place.empty()) text += wrapped(place, "    ");
    text += wrapped(finding.evidence, "    ");
    if (!finding.accounts_for.empty())
      text += wrapped("also found, and follows from this: " + list(finding.accounts_for), "    ");
    for (const auto& place : finding.places)
      text += "    " + below(folder, place.file) + ":" + std::to_string(place.line) +
              whose(place, finding) + ": " + place.source + "\n" +
              (place.raised.empty() ? "" : "        " + place.raised + "\n");
    text += what_is_near(finding);
  }
  return text;
}

std::string to_text(const Diagnosis& diagnosis, Language job, const std::string& folder) {
  auto text = to_text(diagnosis.findings, folder);
  const auto count = [&](State state) {
    return std::to_string(
        std::count_if(diagnosis.rows.begin(), diagnosis.rows.end(),
                      [&](const auto& row) { return row.verdict.state == state; }));
  };
  if (diagnosis.findings.empty()) text += "Nothing found.\n" + what_is_missing(diagnosis, job);
  for (const auto& sentence : diagnosis.incomplete)
    text += wrapped("Not all was recorded: " + sentence + ".", "");
  const auto named =
      std::count_if(diagnosis.rows.begin(), diagnosis.rows.end(), [&](const auto& row) {
        return std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(),
                           [&](const auto& finding) { return finding.pitfall == row.slug; });
      });
  const auto explained =
      std::count_if(diagnosis.rows.begin(), diagnosis.rows.end(),
                    [](const auto& row) { return row.verdict.state == State::found; }) -
      named;
  text += who_is_compared(diagnosis);
  return text + wrapped("Of " + std::to_string(diagnosis.rows.size()) +
                            " detectors: " + std::to_string(named) + " found" +
                            (explained > 0 ? " and " + std::to_string(explained) +
                                                 " more that follow from that"
                                           : "") +
                            ", " + count(State::clean) + " clean, " + count(State::not_triggered) +
                            " without the events they need, " + count(State::not_applicable) +
                            " that do not apply to this run.",
                        "");
}

}  // namespace lockstep::diagnose
