// Generic: ranks that did not call the same collective.
#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/format.h>

namespace lockstep::diagnose {
namespace {
Verdict collective_mismatch(const Run& run);
}  // namespace

std::vector<Detector> collectives_detectors() {
  return {
      // Rule: at one (group, sequence), the ranks' operation, reduce operation, root, dtype or
      // sizes differ. Sizes count only where the operation asks for equal ones (reductions and
      // broadcasts, not reduce_scatter); point-to-point operations are left out, and so are groups
      // of which a rank has one sequence twice (several under one name).
      {.slug = "collective-mismatch",
       .equation = Equation::same_calls,
       .whole = true,
       .needs = {"collective"},
       .complete = false,
       .stage = Stage::stall,
       .detect = collective_mismatch},
  };
}

namespace {
Verdict collective_mismatch(const Run& run) {
  if (!has_calls(run)) return not_triggered("no collective was recorded");
  if (all_call_alike(run)) return clean();
  const auto& calls = calls_of(run);
  const auto mismatch = first_mismatch(calls);
  if (!mismatch && !ambiguous_groups(calls).empty())
    return not_triggered("a rank has a group's sequence twice: which calls meet cannot be told");
  if (!mismatch) return clean();
  const auto& call = mismatch->calls->front();
  return found(
      {.ranks = mismatch->odd,
       .step = call.step,
       .sequence = call.collective->sequence,
       .evidence = fmt::format("at sequence {} the ranks called different collectives: {}",
                               call.collective->sequence, describe_all(*mismatch->calls))});
}

}  // namespace
}  // namespace lockstep::diagnose
