// The generic finding of a training that is lost: losses that are no finite numbers any more.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict not_finite(const Run& run);
}  // namespace

std::vector<Detector> not_finite_detectors() {
  return {
      // Rule: what backward starts from is NaN or infinite in the last two steps or more of every
      // rank, in nine where a GradScaler leaves steps out. It names the ranks on which that began.
      // Any violation that began no later accounts for it. Not fooled by a loss that recovers, nor by one whose scale
      // alone makes it infinite: a GradScaler finds its gradients finite, and updates.
      {.slug = "not-finite",
       .equation = Equation::mean_gradient,
       .needs = {"update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .is_consequence = true,
       .accounts_for = {"losses-differ"},
       .detect = not_finite},
  };
}

namespace {
// The losses behind one update, or behind a step that a GradScaler left out.
struct Turn {
  std::int64_t step = -1;
  bool finite = true;  // each of them, or a GradScaler found their gradients so
  bool left_out = false;
};

bool has_finite_gradients(const UpdateStretch& update) {
  const auto steps = update.all<trace::ScaledStep>();
  return update.updated && !steps.empty() &&
         std::ranges::none_of(steps, [](const auto& at) { return at.event->found_nonfinite; });
}

std::vector<Turn> turns_of(const trace::ParticipantTrace& rank) {
  std::vector<Turn> turns;
  for (const auto& update : cut_at_updates(rank)) {
    std::vector<double> losses;
    for (const auto& at : update.all<trace::Backward>()) losses.push_back(at.event->value);
    for (const auto& at : update.all<trace::Loss>()) losses.push_back(at.event->backward_value);
    const auto is_finite = [](double loss) { return std::isfinite(loss); };
    if (!losses.empty())
      turns.push_back({update.step,
                       std::ranges::all_of(losses, is_finite) || has_finite_gradients(update),
                       update.left_out});
  }
  return turns;
}

constexpr std::size_t kLasting = 2;
// A GradScaler may leave some steps out before it has found its scale.
constexpr std::size_t kForgiven = 8;

// The step from which on no loss is finite, and the last one before. Nothing where the last loss is finite, or too few
// are not.
struct Lost {
  std::int64_t first = -1, before = -1;
};
std::optional<Lost> lost_from(const std::vector<Turn>& turns) {
  std::size_t lost = 0, left_out = 0;
  for (auto turn = turns.rbegin(); turn != turns.rend() && !turn->finite; ++turn) {
    ++lost;
    left_out += turn->left_out ? 1 : 0;
  }
  if (lost < kLasting || (left_out > 0 && lost <= kForgiven)) return std::nullopt;
  const auto first = turns.end() - static_cast<std::ptrdiff_t>(lost);
  return Lost{first->step, first == turns.begin() ? -1 : std::prev(first)->step};
}

Verdict not_finite(const Run& run) {
  std::vector<Lost> ranks;
  for (const auto* rank : run.ranks) {
    const auto turns = turns_of(*rank);
    if (turns.empty()) return not_triggered("a rank recorded no loss");
    const auto lost = lost_from(turns);
    if (!lost) return clean();
    ranks.push_back(*lost);
  }
  const auto earlier = [](const Lost& a, const Lost& b) { return a.first < b.first; };
  const auto [first, last] = std::minmax_element(ranks.begin(), ranks.end(), earlier);
  // Where losses of the steps before were not recorded, any rank may have begun.
  const bool is_known = first->before + 1 >= first->first;
  std::vector<int> begun;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    if (!is_known || ranks[r].first == first->first) begun.push_back(run.numbers[r]);
  std::string others;
  if (first->first != last->first)
    others = fmt::format(", and that of all ranks from step {} on", last->first);
  return found({.ranks = begun,
                .step = first->first,
                .evidence = fmt::format(
                    "the loss of {} is no finite number from step {} on{}, until the run ends",
                    lockstep::ranks_text(begun), first->first, others),
                .after = first->before});
}

}  // namespace
}  // namespace lockstep::diagnose
