// Pitfalls of 16 bits: who leaves a step out, and what a sum over ranks does to a number that just fits.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::diagnose {
namespace {
Verdict local_overflow_skip(const Run& run);
Verdict low_precision_reduction(const Run& run);
}  // namespace

std::vector<Detector> precision_detectors() {
  return {
      // Rule: of the ranks' n-th steps some update and some do not. Not fooled by ranks that find
      // different things and decide alike, nor by a step that all leave out.
      {.slug = "local-overflow-skip",
       .equation = Equation::all_moved,
       .needs = {"scaled_step"},
       .participants = Participants::ranks,
       .stage = Stage::ranks_differ,
       .accounts_for = {"loss-weight-differs", "update-differs", "replicas-diverged",
                        "gradient-not-the-mean"},
       .detect = local_overflow_skip},
      // Rule: every rank's own gradient is finite, the reduced one is not, and it was reduced in 16
      // bits. Not fooled by 16 bits that suffice, nor by a rank that overflows by itself. Steps in
      // 16 bits whose gradients were not recorded make it not_triggered, unless a scaled step found
      // nothing in them.
      {.slug = "low-precision-reduction",
       .equation = Equation::mean_gradient,
       .needs = {"local_gradients", "reduced_gradients", "collective"},
       .participants = Participants::ranks,
       .detect = low_precision_reduction},
  };
}

namespace {
bool is_finite(const std::vector<trace::Summary>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](const auto& value) { return std::isfinite(value.norm); });
}

bool has_16_bits(const std::string& dtype) {
  return dtype == "float16" || dtype == "bfloat16";
}

// What a rank held when a step was about to update, left out or not.
struct StepEnd {
  std::int64_t step = 0;
  bool own_finite = true;
  bool reduced_finite = true;
  std::string narrow;  // the 16-bit dtype of a reduction of this step
};

struct StepEnds {
  std::vector<StepEnd> ends;  // of steps whose gradients were recorded
  bool unseen = false;        // others were reduced in 16 bits, and may have overflowed
};

StepEnds steps_of(const trace::ParticipantTrace& rank) {
  StepEnds steps;
  for (const auto& update : cut_at_updates(rank)) {
    StepEnd now{.step = update.step};
    for (const auto& at : update.all<trace::Collective>())
      if (at.step >= 0 && at.event->op.find("reduce") != std::string::npos &&
          has_16_bits(at.event->dtype))
        now.narrow = at.event->dtype;
    const auto* local = update.last<trace::LocalGradients>();
    const auto* reduced = update.last<trace::ReducedGradients>();
    const auto* scaled = update.last<trace::ScaledStep>();
    if (local && reduced) {
      now.own_finite = is_finite(local->values);
      now.reduced_finite = is_finite(reduced->values);
      steps.ends.push_back(now);
    } else if (!now.narrow.empty()) {
      // A step in which the rank looked, and found nothing that is not finite, did not overflow.
      steps.unseen = steps.unseen || !scaled || scaled->found_nonfinite;
    }
  }
  return steps;
}

Verdict local_overflow_skip(const Run& run) {
  std::vector<trace::EventsOf<trace::ScaledStep>> steps;
  auto common = static_cast<std::size_t>(-1);  // that every rank came to the end of
  for (const auto* rank : run.ranks) {
    steps.push_back(rank->all<trace::ScaledStep>());
    common = std::min(common, steps.back().size());
  }
  if (common == 0) return not_triggered("a rank recorded no scaled step");
  for (std::size_t n = 0; n < common; ++n) {
    std::vector<int> skip, found_something;
    for (std::size_t r = 0; r < steps.size(); ++r) {
      if (!steps[r][n].event->updates) skip.push_back(run.numbers[r]);
      if (steps[r][n].event->found_nonfinite) found_something.push_back(run.numbers[r]);
    }
    if (skip.empty() || skip.size() == steps.size()) continue;
    return found(
        {.ranks = skip,
         .step = steps.front()[n].step,
         .evidence = fmt::format(
             "{} a step out that the other ranks take: {} of {} ranks found gradients not finite",
             ranks_text(skip, "leaves", "leave"), found_something.size(), steps.size())});
  }
  return clean();
}

Verdict low_precision_reduction(const Run& run) {
  std::vector<std::vector<StepEnd>> ends;
  auto common = static_cast<std::size_t>(-1);
  bool unseen = false;
  for (const auto* rank : run.ranks) {
    auto steps = steps_of(*rank);
    unseen = unseen || steps.unseen;
    ends.push_back(std::move(steps.ends));
    common = std::min(common, ends.back().size());
  }
  if (common == 0) return not_triggered("a rank recorded no gradient before and after a reduction");
  for (std::size_t n = 0; n < common; ++n) {
    const bool overflows = std::all_of(ends.begin(), ends.end(), [&](const auto& of_rank) {
      return of_rank[n].own_finite && !of_rank[n].reduced_finite && !of_rank[n].narrow.empty();
    });
    if (!overflows) continue;
    const auto& first = ends.front()[n];
    return found({.ranks = run.numbers,
                  .step = first.step,
                  .evidence = "every rank's own gradient is finite, and their sum, reduced in " +
                              first.narrow + ", is not"});
  }
  if (unseen)
    return not_triggered(
        "gradients were reduced in 16 bits in steps in which they were not recorded");
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
