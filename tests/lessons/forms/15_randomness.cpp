#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_15() {
  return {
      right("correct-augmentation"),
      exactly(
          "same-augmentation-everywhere", [](int w) { return 1.0 / w; }, 2, 1e-9),
      right("near-miss-equal-seeds"),
      right("correct-workers"),
      exactly("worker-streams-copied", always(0.5), 1, 1e-9),
      right("near-miss-copies-seeded-by-sample"),
      right("near-miss-one-draw-a-batch"),
  };
}

}  // namespace lockstep::testing
