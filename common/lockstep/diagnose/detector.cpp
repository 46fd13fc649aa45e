#include <lockstep/base/text.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/replica_groups.h>
#include <lockstep/trace/levels.h>

#include <algorithm>
#include <array>

namespace lockstep::diagnose {
namespace {

// Not recorded of a model that is sharded.
bool is_of_a_whole_model(const std::string& kind) {
  constexpr std::array kKinds{trace::Model::kName,          trace::Parameters::kName,
                              trace::LocalGradients::kName, trace::ReducedGradients::kName,
                              trace::Buffers::kName,        trace::GradientArrived::kName,
                              trace::Clip::kName,           trace::Forward::kName};
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}

}  // namespace

Verdict Detector::verdict(const Run& run) const {
  if (run.devices && participants == Participants::ranks)
    return not_triggered("one process drives the devices");
  if (!run.devices && participants == Participants::devices)
    return not_triggered("no process here drives several devices");
  if (run.world_size < fewest)
    return not_applicable(
        fmt::format("it takes {}{} {}", plural(fewest, run.devices ? "device" : "rank"),
                    run.is_part ? " that train one model, and here there is" : ", and this run has",
                    run.world_size));
  if (complete && !run.complete)
    return not_triggered(run.devices ? "a device left no trace" : "a rank left no trace");
  if (const auto kind = missing(run); !kind.empty()) {
    if (const auto by = sharded_by(run); !by.empty() && is_of_a_whole_model(kind))
      return not_applicable(fmt::format("each rank holds a part of the model ({})", by));
    return not_triggered(fmt::format("no `{}` was recorded", kind));
  }
  auto verdict = detect(run);
  for (auto& finding : verdict.findings) finding.pitfall = slug;
  return verdict;
}

std::string Detector::missing(const Run& run) const {
  if (run.kinds.contains(or_needs)) return "";
  const auto found =
      std::ranges::find_if(needs, [&](const auto& kind) { return !run.kinds.contains(kind); });
  return found == needs.end() ? "" : *found;
}

bool Detector::looks_at_all() const {
  return of_job || (stage != Stage::none && stage != Stage::ranks_differ);
}

int Detector::lowest_level() const {
  int lowest = level;
  for (const auto& kind : needs) lowest = std::max(lowest, trace::level_of(kind));
  return lowest;
}

const Detector* detector_of(const std::string& slug) {
  const auto& all = detectors();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const auto& detector) { return detector.slug == slug; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace lockstep::diagnose
