#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/record/probe_options.h>

#include <bit>

namespace lockstep::record {

ProbeStretch probe_stretch_from_environment() {
  const auto every = environment_int("LOCKSTEP_EVERY");
  const auto from = environment_int("LOCKSTEP_FROM"), to = environment_int("LOCKSTEP_TO");
  if (!every && (from || to))
    throw UsageError("LOCKSTEP_FROM and LOCKSTEP_TO are set, and LOCKSTEP_EVERY is not");
  if (!every) return {};
  ProbeStretch stretch{.every = *every};
  if (from) stretch.from = *from;
  if (to) stretch.to = *to;
  if (*every < 1 || stretch.from < 0 || stretch.to < stretch.from)
    throw UsageError(
        "LOCKSTEP_EVERY must be at least 1, LOCKSTEP_FROM at least 0, and LOCKSTEP_TO not before "
        "it");
  return stretch;
}

bool ProbeOptions::probes(std::int64_t step) const {
  if (step < first) return true;
  if (also.every > 0 && step >= also.from && step <= also.to && step % also.every == 0) return true;
  if (every <= 0) return false;
  return step < every ? std::has_single_bit(static_cast<std::uint64_t>(step)) : step % every == 0;
}

bool ProbedSteps::has(std::int64_t step) const {
  return options_.probes(step) || (step >= since_ && step < since_ + options_.first);
}

void ProbedSteps::begin_again(std::int64_t step) {
  constexpr int kMost = 8;  // a program may freeze and thaw parameters in every step
  if (step > 0 && ++begun_ <= kMost) since_ = step;
}

}  // namespace lockstep::record
