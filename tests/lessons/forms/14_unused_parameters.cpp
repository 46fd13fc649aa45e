#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_14() {
  return {
      right("correct-branches"),
      exactly("unused-parameter", always(2), 2, 0, "crash"),
      right("near-miss-zero-times"),
      right("correct-two-losses"),
      exactly("parameter-ready-twice", always(0), 1, 0, "crash"),
      right("near-miss-backwards-apart"),
      right("correct-freezing"),
      // Alone, a rank's own gradient is the right one until it stops.
      exactly(
          "frozen-after-wrapping", [](int w) { return w == 1 ? 1 : 0; }, 1, 0, "crash"),
      right("near-miss-frozen-and-looked-for"),
      right("near-miss-wrapped-again"),
      right("correct-optimizer"),
      exactly("optimizer-built-on-other-parameters", always(0), 1, 1e-9),
      exactly("zero-grad-on-bucket-view", always(1), 1, 0, "crash"),
      right("near-miss-warmup-from-zero"),
      right("near-miss-zeroed-in-place"),
  };
}

}  // namespace lockstep::testing
