// Whether evaluations are given samples that the ranks train on.
#pragma once

#include <lockstep/diagnose/run.h>

#include <cstdint>
#include <optional>

namespace lockstep::diagnose {

// Of the different samples that forwards without gradients were given, on all ranks together.
struct Evaluated {
  std::int64_t samples = 0;
  std::int64_t trained = 0;  // those that some rank had trained on before
  std::int64_t never = 0;    // those that no rank trains on
  std::int64_t step = -1;    // of the first evaluation of one that was trained on before
};

// Empty where their contents were not told of both, where not all training was told, or where samples have equal ones.
std::optional<Evaluated> evaluated(const Run& run);

}  // namespace lockstep::diagnose
