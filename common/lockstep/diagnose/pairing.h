// Whether the ranks' updates of one number are of one step, by the collectives before them.
#pragma once

#include <lockstep/diagnose/run.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::diagnose {

// An update that these ranks left out, and the others made: from it on, ranks' updates of one number are of other steps.
struct SkippedUpdate {
  std::int64_t step = 0;
  std::vector<int> ranks;
};

// Where every update before came behind as many collectives of a group of all ranks, one at least since the one before.
// There a rank makes its update behind more of them than another, by a whole step's at least.
const std::optional<SkippedUpdate>& update_skipped(const Run& run);

}  // namespace lockstep::diagnose
