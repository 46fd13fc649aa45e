// Generic: ranks that did not call the same collective.
#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/detectors.h>

namespace lockstep::diagnose {

Verdict collective_mismatch(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank has nobody to agree with");
  if (!has_calls(run)) return not_triggered("no collective was recorded");
  if (all_call_alike(run)) return clean();
  const auto calls = calls_of(run);
  const auto mismatch = first_mismatch(calls);
  if (!mismatch && !ambiguous_groups(calls).empty())
    return not_triggered("a rank has a group's sequence twice: which calls meet cannot be told");
  if (!mismatch) return clean();
  const auto& call = mismatch->calls->front();
  return found(
      {.pitfall = "collective-mismatch",
       .ranks = mismatch->odd,
       .step = call.step,
       .sequence = call.collective->sequence,
       .evidence = "at sequence " + std::to_string(call.collective->sequence) +
                   " the ranks called different collectives: " + describe_all(*mismatch->calls)});
}

}  // namespace lockstep::diagnose
