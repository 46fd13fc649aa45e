#include <cmath>

#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_13() {
  return {
      right("correct-clipping"),
      exactly(
          "norm-reduced-twice", [](int w) { return std::sqrt(w); }, 2, 1e-3),
      at_least("clip-before-reduction", 0.02),
      right("near-miss-norm-by-shards"),
      right("near-miss-nothing-to-clip"),
      right("correct-scaling"),
      exactly("clip-before-unscale", always(1.0 / 1024), 1, 1e-6),
      right("near-miss-scaled-norm"),
      right("correct-overflow"),
      exactly("local-overflow-skip", always(1)),
      right("near-miss-checked-after-reduction"),
      right("correct-precision"),
      // 0.9 * 65536 on each rank, and float16 ends at 65504.
      exactly("low-precision-reduction", [](int w) { return std::ceil(std::log2(0.9 * w)); }),
      right("near-miss-divided-first"),
  };
}

}  // namespace lockstep::testing
