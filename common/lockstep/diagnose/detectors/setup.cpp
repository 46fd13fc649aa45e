// How ranks that train one model are set up.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace lockstep::diagnose {
namespace {
std::vector<Finding> configuration(const Run& run);
std::vector<Finding> optimizers(const Run& run);
}  // namespace

std::vector<Detector> setup_detectors() {
  return {
      // Rule: a setting of a submodule or of the gradient engine that all of them have differs, such
      // as a dropout's p. Advice: one of the loss, such as its weights of classes, or of a train loader, a version, a
      // variable of the environment, or a number that the program computes with, or a setting, and does not change.
      // Not fooled by such numbers that are whole on all ranks, as counts are, nor by whole settings that follow the
      // ranks' numbers, as a seed does.
      {.slug = "configuration-differs",
       .equation = Equation::equal_settings,
       .whole = true,
       .needs = {"settings"},
       .participants = Participants::ranks,
       .detect = [](const Run& run) { return among_replicas(run, configuration); }},
      // The same of an optimizer's parameter group: its type, or an option such as the weight
      // decay; or the norm to clip to, which is advice as long as parameters are equal. Not fooled
      // by ranks that have groups of their own.
      {.slug = "optimizer-differs",
       .equation = Equation::equal_settings,
       .whole = true,
       .needs = {"settings"},
       .or_needs = "clip",
       .participants = Participants::ranks,
       .accounts_for = {"update-differs", "replicas-diverged", "gradient-not-the-mean"},
       .detect = [](const Run& run) { return among_replicas(run, optimizers); }},
  };
}

namespace {
using trace::SettingsOf;
using ByKey = std::map<std::string, std::string>;

// As the last attempt has it. What a program sets up again, such as a second model, is not looked at.
ByKey settings_of(const trace::ParticipantTrace& rank, SettingsOf of) {
  ByKey settings;
  auto events = rank.latest<trace::Settings>();
  if (events.empty()) events = rank.all<trace::Settings>();
  each_setting(events, of, [&](const std::string& key, const std::string& value) {
    settings.emplace(key, value);
  });
  return settings;
}

constexpr double kSameConstant = 1e-4, kSameCount = 1e-2;  // relative

const std::string kOfLoader = " of the loader of ";

// How many samples the rank's only loader deals, in words; nothing where it has several.
std::string loaders_size(const ByKey& settings) {
  std::set<std::string> sizes;
  for (const auto& [key, value] : settings)
    if (const auto at = key.find(kOfLoader); at != key.npos)
      sizes.insert(key.substr(at + kOfLoader.size()));
  return sizes.size() == 1 ? *sizes.begin() : std::string();
}

// Ranks that hold parts of the data have loaders of other sizes: where each has one only, that is the one to compare.
void take_for_one_loader(std::vector<ByKey>& ranks) {
  std::set<std::string> sizes;
  for (const auto& settings : ranks) sizes.insert(loaders_size(settings));
  if (sizes.size() < 2 || sizes.count("") > 0) return;
  for (auto& settings : ranks) {
    ByKey of_any_size;
    for (const auto& [key, value] : settings)
      of_any_size.emplace(key.substr(0, key.find(kOfLoader)) + " of the loader", value);
    settings = std::move(of_any_size);
  }
}

// As seeds and offsets do: one step from rank to rank. Any two numbers are such steps, so of two ranks those count that
// begin with 0 or are a power of ten apart.
bool follow_the_ranks(const std::vector<int>& ranks, const std::vector<double>& values) {
  if (values.size() < 2) return false;
  const double step = (values[1] - values[0]) / (ranks[1] - ranks[0]);
  const double power = step > 0 ? std::log10(step) : 0.5;
  if (values.size() == 2 && values[0] != step * ranks[0] && power != std::floor(power))
    return false;
  for (std::size_t r = 0; r < values.size(); ++r)
    if (values[r] != values[0] + step * (ranks[r] - ranks[0])) return false;
  return true;
}

// As the rank on a node and the node's number are.
bool number_nodes(const std::vector<int>& ranks, const std::vector<double>& values) {
  for (int on_node = 2; on_node < static_cast<int>(values.size()); ++on_node) {
    bool within = true, nodes = true;
    for (std::size_t r = 0; r < values.size(); ++r) {
      within = within && values[r] == ranks[r] % on_node;
      nodes = nodes && values[r] == ranks[r] / on_node;
    }
    if (within || nodes) return true;
  }
  return false;
}

// Numbers that a program holds: whole ones may be counts of the rank's own data, or in settings what tells it from
// others; close ones are one number that was rounded otherwise. Texts may be neither.
bool may_be_a_ranks_own(const std::vector<int>& ranks, const std::vector<std::string>& texts,
                        bool are_settings) {
  std::vector<double> values;
  for (const auto& text : texts) {
    const auto value = number_in(text);
    if (!value) return false;
    values.push_back(*value);
  }
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  if (are_settings)
    return are_close(*least, *greatest, kSameCount) || follow_the_ranks(ranks, values) ||
           number_nodes(ranks, values);
  return are_close(*least, *greatest, kSameConstant) ||
         std::all_of(values.begin(), values.end(),
                     [](double value) { return value == std::floor(value); });
}

// When the rank's last attempt was set up so.
std::int64_t step_of(const trace::ParticipantTrace& rank, SettingsOf of, const std::string& key) {
  for (const auto& at : rank.latest<trace::Settings>())
    if (at.event->of == of && std::count(at.event->keys.begin(), at.event->keys.end(), key) > 0)
      return std::max<std::int64_t>(at.step, 0);
  return 0;
}

// All settings that differ, in one finding. A setting that a rank lacks is left alone: a sharded optimizer has other
// groups on each rank.
std::vector<Finding> settings_that_differ(const Run& run, SettingsOf of,
                                          Severity severity = Severity::violation) {
  std::vector<ByKey> settings;
  for (const auto* rank : run.ranks) settings.push_back(settings_of(*rank, of));
  if (of == SettingsOf::loader) take_for_one_loader(settings);
  std::vector<std::string> evidence;
  std::set<int> ranks;
  std::int64_t step = 0;
  for (const auto& [key, value] : settings.front()) {
    std::vector<std::string> values;
    for (const auto& of_rank : settings)
      if (const auto found = of_rank.find(key); found != of_rank.end())
        values.push_back(found->second);
    if (values.size() < settings.size()) continue;
    if ((of == SettingsOf::constants || of == SettingsOf::settings) &&
        may_be_a_ranks_own(run.numbers, values, of == SettingsOf::settings))
      continue;
    const auto one = differs(run, key, values, 0);
    if (!one) continue;
    if (of == SettingsOf::optimizer && evidence.empty())
      step = step_of(*run.ranks.front(), of, key);
    evidence.push_back(one->evidence);
    ranks.insert(one->ranks.begin(), one->ranks.end());
  }
  if (evidence.empty()) return {};
  return {{.severity = severity,
           .ranks = {ranks.begin(), ranks.end()},
           .step = step,
           .evidence = some_of(evidence)}};
}

// Other batches, versions or variables may be a choice.
std::vector<Finding> configuration(const Run& run) {
  auto findings = settings_that_differ(run, SettingsOf::model);
  for (const auto& [of, severity] : {std::pair{SettingsOf::engine, Severity::violation},
                                     {SettingsOf::loss, Severity::advice},
                                     {SettingsOf::loader, Severity::advice},
                                     {SettingsOf::program, Severity::advice},
                                     {SettingsOf::constants, Severity::advice},
                                     {SettingsOf::settings, Severity::advice}})
    for (auto& finding : settings_that_differ(run, of, severity))
      findings.push_back(std::move(finding));
  return findings;
}

// Equal in each recorded step before the first clip, and not at the end.
bool come_apart_after(const ReplicasByStep& replicas, std::int64_t first) {
  for (const auto& [step, of_step] : replicas)
    if (step < first && groups_of_equal(of_step).tensor >= 0) return false;
  return !replicas.empty() && groups_of_equal(replicas.rbegin()->second).tensor >= 0;
}

// Some ranks do not clip, or clip to another norm. While the parameters stay equal, one rank may clip for all, and another
// norm, which may not have been reached, is advice. A clip to infinity only measures.
std::optional<Finding> clips_that_differ(const Run& run) {
  std::vector<std::string> norms;
  auto first = std::numeric_limits<std::int64_t>::max();
  bool all_clip = true;
  for (const auto* rank : run.ranks) {
    const auto clips = rank->all<trace::Clip>().where(
        [](const auto& at) { return std::isfinite(at.event->max_norm); });
    if (rank->all<trace::ReducedGradients>().size() < kAgreeing) return std::nullopt;
    norms.push_back(clips.empty() ? "none" : number(clips.front().event->max_norm));
    all_clip = all_clip && !clips.empty();
    if (!clips.empty()) first = std::min(first, clips.front().step);
  }
  auto finding = differs(run, "the norm that gradients are clipped to", norms, first);
  if (!finding) return finding;
  const bool apart = come_apart_after(replicas_by_step(run), first);
  if (!apart && !all_clip) return std::nullopt;
  if (!apart) finding->severity = Severity::advice;
  return finding;
}

std::vector<Finding> optimizers(const Run& run) {
  auto findings = settings_that_differ(run, SettingsOf::optimizer);
  if (auto clips = clips_that_differ(run)) findings.push_back(std::move(*clips));
  return findings;
}

}  // namespace
}  // namespace lockstep::diagnose
