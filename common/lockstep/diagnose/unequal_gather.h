#pragma once

#include <lockstep/diagnose/evidence.h>

namespace lockstep::diagnose {

// A gather may be of unequal sizes on some backends. Where a rank did not come out of one, and none had gone well before,
// it was not: shape-mismatch.
Verdict unequal_gather(const Run& run);

}  // namespace lockstep::diagnose
