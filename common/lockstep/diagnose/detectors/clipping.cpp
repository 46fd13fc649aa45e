// Pitfalls of clipping: by a norm that is not the gradient's, or by one that is another gradient's.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict norm_reduced_twice(const Run& run);
Verdict clip_before_reduction(const Run& run);
Verdict clip_before_unscale(const Run& run);
Verdict clipped_before_backward(const Run& run);
}  // namespace

std::vector<Detector> clipping_detectors() {
  return {
      // Rule: all ranks clip the same gradients, and each goes by sqrt(W) times their norm. Not
      // fooled by squares that are summed over the ranks where each has those of its own part.
      {.slug = "norm-reduced-twice",
       .equation = Equation::clipped_once,
       .whole = true,
       .needs = {"clip"},
       .participants = Participants::ranks,
       .detect = norm_reduced_twice},
      // Rule: the ranks clip gradients of their own, each by another factor, and the reduced
      // gradient is the mean of what is left. Not fooled by a clip of own gradients that are all
      // shorter than allowed.
      {.slug = "clip-before-reduction",
       .equation = Equation::clipped_once,
       .whole = true,
       .needs = {"clip", "reduced_gradients"},
       .participants = Participants::ranks,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = clip_before_reduction},
      // Needs reduced gradients, and a loss scaled by 256 or more. Rule: in every step gradients
      // are clipped, then divided by the scale, and the norm allowed lies nearer to the one they
      // have without the scale. Not fooled by a norm that is scaled with the loss.
      {.slug = "clip-before-unscale",
       .equation = Equation::clipped_once,
       .whole = true,
       .needs = {"clip", "scaled_step", "reduced_gradients"},
       .fewest = 1,
       .detect = clip_before_unscale},
      // Rule: in each update, two or more, what was clipped last is nothing, or to the bit the
      // gradient of the update before, and the update goes by another. Advice: in two updates or more a clip shortens
      // what is there, and another backward of the update follows. Not fooled by a clip of another model, whose norm is
      // another.
      {.slug = "clipped-before-backward",
       .equation = Equation::clipped_once,
       .needs = {"clip", "reduced_gradients", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .detect = clipped_before_backward},
  };
}

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

Verdict norm_reduced_twice(const Run& run) {
  const auto steps = clip_steps(run);
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
  return found({.ranks = run.numbers,
                .step = steps.front().step,
                .evidence = fmt::format("all ranks hold the same gradients, of norm {}, and clip "
                                        "them by a norm of {}: that times the square root of {}",
                                        number(clip.norm), number(clip.used), run.world_size)});
}

Verdict clip_before_reduction(const Run& run) {
  const auto steps = clip_steps(run);
  bool looked = false;
  for (const auto& step : steps) {
    const auto has_reduced = [](const ClipOfRank& clip) { return clip.reduced.has_value(); };
    if (!std::all_of(step.ranks.begin(), step.ranks.end(), has_reduced)) continue;
    looked = true;
    const auto& first = step.ranks.front();
    const auto as_long = [&](const ClipOfRank& clip) {
      return clip.before.size() == first.before.size();
    };
    if (!std::all_of(step.ranks.begin(), step.ranks.end(), as_long)) continue;
    bool unequal = false;
    std::vector<Vector> left;
    for (const auto& clip : step.ranks) {
      unequal = unequal || !is_near(clip.factor(), first.factor(), kSameFactor);
      left.push_back(times(clip.factor(), clip.before));
    }
    if (!unequal) continue;  // a common factor changes places with the mean
    const auto of_the_left = mean(left);
    const auto sum = times(static_cast<double>(left.size()), of_the_left);
    const bool is_mean_or_sum =
        std::all_of(step.ranks.begin(), step.ranks.end(), [&](const ClipOfRank& clip) {
          return distance(*clip.reduced, of_the_left) <= kSameFactor ||
                 distance(*clip.reduced, sum) <= kSameFactor;
        });
    if (!is_mean_or_sum) continue;
    const auto [least, greatest] =
        std::minmax_element(step.ranks.begin(), step.ranks.end(),
                            [](const auto& a, const auto& b) { return a.norm < b.norm; });
    return found({.ranks = run.numbers,
                  .step = step.step,
                  .evidence = fmt::format(
                      "each rank clips its own gradient (norms from {} to {}, allowed {}), and the "
                      "reduced one is the mean or the sum of what is left, of another direction "
                      "than the mean gradient",
                      number(least->norm), number(greatest->norm), number(first.allowed))});
  }
  if (!looked) return not_triggered(kNoClip);
  return clean();
}

Verdict clip_before_unscale(const Run& run) {
  const auto steps = clip_steps(run);
  const ClipStep* first = nullptr;
  for (const auto& step : steps) {
    const auto& clip = step.ranks.front();
    if (!clip.reduced || clip.scale < kTellingScale) continue;
    if (!is_divided_later(clip) || !is_meant_for_unscaled(clip)) return clean();
    if (first == nullptr) first = &step;
  }
  if (first == nullptr)
    return not_triggered(
        fmt::format("no step has a clip of every rank's gradients and a loss scaled by {} or more",
                    number(kTellingScale)));
  const auto& clip = first->ranks.front();
  return found(
      {.ranks = run.numbers,
       .step = first->step,
       .evidence = fmt::format(
           "gradients of norm {} are clipped to {} and then divided by the loss's scale of {}: "
           "unscaled, their norm is {}, and what is left has one of {}",
           number(clip.norm), number(clip.allowed), number(clip.scale),
           number(clip.norm / clip.scale), number(clip.norm * clip.factor() / clip.scale))});
}

// What the last clip before an update found: the update's own gradient, none, or the gradient of the update before.
enum class Clipped { its_own, nothing, the_last_ones };

Clipped what_was_clipped(const trace::Clip& clip, const trace::ReducedGradients& reduced,
                         const trace::ReducedGradients* before) {
  if (norm_of(reduced.values) == 0) return Clipped::its_own;
  const double norm = norm_of(clip.values);
  if (norm == 0) return clip.norm == 0 ? Clipped::nothing : Clipped::its_own;
  const bool last_ones = before != nullptr && are_identical(clip.values, before->values) &&
                         !are_identical(clip.values, reduced.values);
  return last_ones && is_near(clip.norm, norm, kSameFactor) ? Clipped::the_last_ones
                                                            : Clipped::its_own;
}

// Of the recorded model's own gradients, by their norm, which the clip shortens.
bool shortens_own(const trace::Clip& clip) {
  const double norm = norm_of(clip.values);
  return clip.norm > clip.max_norm && is_near(clip.norm, norm, kSameFactor);
}

// In two updates or more the gradients are clipped, and further backwards of the update follow. A program may mean to
// clip each part, so this is advice.
std::optional<Finding> clipped_in_parts(const Run& run) {
  constexpr int kUpdates = 2;
  std::int64_t first = -1;
  int updates = 0;
  for (const auto& update : cut_at_updates(*run.ranks.front())) {
    bool clipped = false, grown = false;  // since the last clearing; by a backward since
    for (const auto& event : update.events()) {
      const auto* clip = event.as<trace::Clip>();
      clipped = clipped || (clip && shortens_own(*clip));
      grown = grown || (clipped && event.is<trace::GradientArrived>());
      if (event.is<trace::ZeroGrad>()) clipped = grown = false;
    }
    if (update.updated && grown && updates++ == 0) first = update.step;
  }
  if (updates < kUpdates) return std::nullopt;
  return Finding{
      .severity = Severity::advice,
      .ranks = run.numbers,
      .step = first,
      .evidence = fmt::format("gradients are clipped before all of an update's backwards have run, "
                              "in {} that were looked at: each clip shortens what had come by then",
                              plural(updates, "update"))};
}

Verdict clipped_other_gradients(const Run& run) {
  constexpr int kUpdates = 2;
  std::optional<std::int64_t> first;
  bool nothing = true;
  for (const auto* rank : run.ranks) {
    const auto reduced = by_step<trace::ReducedGradients>(*rank);
    int looked = 0;
    for (const auto& [step, clip] : by_step<trace::Clip>(*rank)) {
      const auto after = reduced.find(step), before = reduced.find(step - 1);
      if (after == reduced.end()) continue;
      const auto what = what_was_clipped(*clip, *after->second,
                                         before == reduced.end() ? nullptr : before->second);
      if (what == Clipped::its_own) {
        if (before == reduced.end() && step > 0) continue;  // it may be that one's
        return clean();
      }
      nothing = nothing && what == Clipped::nothing;
      if (looked++ == 0) first = first ? std::min(*first, step) : step;
    }
    if (looked < kUpdates)
      return not_triggered("no two updates have a clip and the gradients behind it");
  }
  return found({.ranks = run.numbers,
                .step = *first,
                .evidence = fmt::format("what is clipped is not what the update goes by: {}, in "
                                        "each update from {} on that was looked at",
                                        nothing ? "there is no gradient yet"
                                                : "it is the gradient of the update before",
                                        *first)});
}

Verdict clipped_before_backward(const Run& run) {
  auto verdict = clipped_other_gradients(run);
  if (verdict.state == State::found) return verdict;
  auto in_parts = clipped_in_parts(run);
  return in_parts ? found(std::move(*in_parts)) : verdict;
}

}  // namespace
}  // namespace lockstep::diagnose
