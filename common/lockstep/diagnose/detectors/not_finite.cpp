// The generic finding of a training that is lost: losses that are no finite numbers any more.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>

#include <algorithm>
#include <cmath>

namespace lockstep::diagnose {
namespace {

struct Lost {
  std::int64_t first = -1;  // the step from which on no loss is finite; -1: the last one is
  std::int64_t last = -1;
};

// By what backward() starts from. A step that a GradScaler leaves out harms nothing.
std::optional<Lost> lost_from(const trace::ParticipantTrace& rank) {
  std::optional<Lost> lost;
  for (const auto& event : rank.events) {
    const auto* backward = event.as<trace::Backward>();
    const auto* loss = event.as<trace::Loss>();
    const auto* scaled = event.as<trace::ScaledStep>();
    if (scaled != nullptr && !scaled->updates && lost) lost->first = -1;
    if (backward == nullptr && loss == nullptr) continue;
    if (!lost) lost.emplace();
    lost->last = event.step;
    if (std::isfinite(backward != nullptr ? backward->value : loss->backward_value))
      lost->first = -1;
    else if (lost->first < 0)
      lost->first = event.step;
  }
  return lost;
}

Verdict not_finite(const Run& run) {
  std::vector<std::int64_t> firsts;
  bool lasts = false;
  for (const auto* rank : run.ranks) {
    const auto lost = lost_from(*rank);
    if (!lost) return not_triggered("a rank recorded no loss");
    if (lost->first < 0) return clean();
    firsts.push_back(lost->first);
    lasts = lasts || lost->last > lost->first;
  }
  if (!lasts) return clean();
  const auto [first, last] = std::minmax_element(firsts.begin(), firsts.end());
  std::vector<int> ranks;
  for (std::size_t r = 0; r < firsts.size(); ++r)
    if (firsts[r] == *first) ranks.push_back(run.numbers[r]);
  const auto others = *first == *last
                          ? std::string()
                          : ", and that of all ranks from step " + std::to_string(*last) + " on";
  return found({.ranks = ranks,
                .step = *first,
                .evidence = "the loss of " + lockstep::ranks_text(ranks) +
                            " is no finite number from step " + std::to_string(*first) + " on" +
                            others + ", until the run ends"});
}

}  // namespace

std::vector<Detector> not_finite_detectors() {
  return {
      // Rule: what backward starts from is NaN or infinite in the last two steps or more of every rank. It names the
      // ranks on which that began. Any violation that began before accounts for it. Not fooled by steps that a GradScaler leaves out, nor by a loss that recovers.
      {.slug = "not-finite",
       .needs = {"update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .is_consequence = true,
       .generic = true,
       .accounts_for = {"losses-differ"},
       .detect = not_finite},
  };
}

}  // namespace lockstep::diagnose
