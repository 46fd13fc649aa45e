// Pitfalls of clipping: by a norm that is not the gradient's, or by one that is another gradient's.
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace lockstep::diagnose {
namespace {

constexpr double kSameFactor = 1e-3;  // relative; the factors of these pitfalls are far apart

// One clip of one rank, and what came of it.
struct ClipOfRank {
  double allowed = 0;
  double used = 0;                     // the norm that the program went by
  double norm = 0;                     // of the gradients that were there
  Vector before;                       // those gradients
  std::optional<Vector> reduced = {};  // .grad at the end of the step
  double scale = 1;                    // of the loss
  double factor() const { return std::min(1.0, allowed / (used + 1e-6)); }
};

struct ClipStep {
  std::int64_t step = 0;
  std::vector<ClipOfRank> ranks;
};

double norm_of(const std::vector<trace::Summary>& values) {
  double square = 0;
  for (const auto& value : values) square += value.norm * value.norm;
  return std::sqrt(square);
}

// A rank's last clip of each step. One of gradients that are not finite tells nothing.
std::map<std::int64_t, ClipOfRank> clips_of(const trace::ParticipantTrace& rank) {
  std::map<std::int64_t, ClipOfRank> clips;
  for (const auto& at : rank.all<trace::Clip>()) {
    const auto before = vector_of(at.event->values);
    clips.erase(at.step);
    if (!before) continue;
    clips[at.step] = {.allowed = at.event->max_norm,
                      .used = at.event->norm,
                      .norm = norm_of(at.event->values),
                      .before = *before};
  }
  for (const auto& at : rank.all<trace::ReducedGradients>())
    if (clips.count(at.step)) clips[at.step].reduced = vector_of(at.event->values);
  for (const auto& at : rank.all<trace::ScaledStep>())
    if (clips.count(at.step)) clips[at.step].scale = at.event->scale;
  return clips;
}

// The steps in which every rank clipped.
std::vector<ClipStep> clip_steps(const Run& run) {
  std::map<std::int64_t, ClipStep> steps;
  for (const auto* rank : run.ranks)
    for (const auto& [step, clip] : clips_of(*rank)) {
      steps[step].step = step;
      steps[step].ranks.push_back(clip);
    }
  std::vector<ClipStep> whole;
  for (const auto& [number, step] : steps)
    if (step.ranks.size() == run.ranks.size()) whole.push_back(step);
  return whole;
}

// The allowed norm was meant for gradients without the scale, or with it: whichever norm lies nearer to it, as
// a factor. A small scale does not tell.
constexpr double kTellingScale = 256;

bool is_meant_for_unscaled(const ClipOfRank& clip) {
  return clip.norm / clip.allowed > std::sqrt(clip.scale);
}

bool is_divided_later(const ClipOfRank& clip) {
  return distance(*clip.reduced, times(clip.factor() / clip.scale, clip.before)) <= kSameFactor;
}

const char* const kNoClip = "no step has a clip of every rank's gradients";

}  // namespace

Verdict norm_reduced_twice(const trace::Trace& trace) {
  const Run run(trace);
  if (run.devices) return not_triggered("no ranks here reduce norms with each other");
  if (run.world_size < 2) return not_applicable("one rank has nobody to add norms with");
  const auto steps = run.complete ? clip_steps(run) : std::vector<ClipStep>{};
  if (steps.empty()) return not_triggered(kNoClip);
  const double root = std::sqrt(static_cast<double>(run.world_size));
  for (const auto& step : steps) {
    const auto& first = step.ranks.front();
    for (const auto& clip : step.ranks)
      if (distance(clip.before, first.before) > kRounding || clip.norm == 0 ||
          !is_near(clip.used / clip.norm, root, kSameFactor))
        return clean();
  }
  const auto& clip = steps.front().ranks.front();
  return found({.pitfall = "norm-reduced-twice",
                .ranks = run.numbers,
                .step = steps.front().step,
                .evidence = "all ranks hold the same gradients, of norm " + number(clip.norm) +
                            ", and clip them by a norm of " + number(clip.used) +
                            ": that times the square root of " + std::to_string(run.world_size)});
}

Verdict clip_before_reduction(const trace::Trace& trace) {
  const Run run(trace);
  if (run.devices) return not_triggered("no ranks here reduce gradients with each other");
  if (run.world_size < 2) return not_applicable("one rank's gradient is reduced with nobody's");
  const auto steps = run.complete ? clip_steps(run) : std::vector<ClipStep>{};
  bool looked = false;
  for (const auto& step : steps) {
    const auto has_reduced = [](const ClipOfRank& clip) { return clip.reduced.has_value(); };
    if (!std::all_of(step.ranks.begin(), step.ranks.end(), has_reduced)) continue;
    looked = true;
    const auto& first = step.ranks.front();
    bool unequal = false;
    std::vector<Vector> left;
    for (const auto& clip : step.ranks) {
      unequal = unequal || !is_near(clip.factor(), first.factor(), kSameFactor);
      left.push_back(times(clip.factor(), clip.before));
    }
    if (!unequal) continue;  // a common factor changes places with the mean
    const auto of_the_left = mean(left, std::vector<double>(left.size(), 1.0));
    if (!std::all_of(step.ranks.begin(), step.ranks.end(), [&](const ClipOfRank& clip) {
          return distance(*clip.reduced, of_the_left) <= kSameFactor;
        }))
      continue;
    const auto [least, greatest] =
        std::minmax_element(step.ranks.begin(), step.ranks.end(),
                            [](const auto& a, const auto& b) { return a.norm < b.norm; });
    return found({.pitfall = "clip-before-reduction",
                  .ranks = run.numbers,
                  .step = step.step,
                  .evidence = "each rank clips its own gradient (norms from " +
                              number(least->norm) + " to " + number(greatest->norm) + ", allowed " +
                              number(first.allowed) +
                              "), and the reduced one is the mean of what is left, of another "
                              "direction than the mean gradient"});
  }
  if (!looked) return not_triggered(kNoClip);
  return clean();
}

Verdict clip_before_unscale(const trace::Trace& trace) {
  const Run run(trace);
  const auto steps = run.complete ? clip_steps(run) : std::vector<ClipStep>{};
  const ClipStep* first = nullptr;
  for (const auto& step : steps) {
    const auto& clip = step.ranks.front();
    if (!clip.reduced || clip.scale < kTellingScale) continue;
    if (!is_divided_later(clip) || !is_meant_for_unscaled(clip)) return clean();
    if (first == nullptr) first = &step;
  }
  if (first == nullptr)
    return not_triggered("no step has a clip of every rank's gradients and a loss scaled by " +
                         number(kTellingScale) + " or more");
  const auto& clip = first->ranks.front();
  return found({.pitfall = "clip-before-unscale",
                .ranks = run.numbers,
                .step = first->step,
                .evidence = "gradients of norm " + number(clip.norm) + " are clipped to " +
                            number(clip.allowed) + " and then divided by the loss's scale of " +
                            number(clip.scale) + ": unscaled, their norm is " +
                            number(clip.norm / clip.scale) + ", and what is left has one of " +
                            number(clip.norm * clip.factor() / clip.scale)});
}

}  // namespace lockstep::diagnose
