#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_03() {
  return {
      right("correct-by-hand"),
      at_least("no-initial-broadcast", 0.1),
      at_least("no-gradient-sync", 1e-3),
      exactly(
          "sum-not-mean", [](int w) { return w; }, 2, 1e-3),
      right("near-miss-same-seed"),
      right("near-miss-parameters-averaged"),
      right("near-miss-loss-divided"),
      right("correct-wrapper"),
      at_least("forward-bypasses-wrapper", 1e-3),
      exactly(
          "double-average", [](int w) { return 1.0 / w; }, 2, 1e-3),
      exactly("parameters-differ-across-ranks", always(0), 2, 0, "crash"),
      right("near-miss-sum-over-count"),
      right("correct-made-up-data"),
      at_least("dataset-unseeded", 1e-6),
      right("near-miss-own-shard"),
  };
}

}  // namespace lockstep::testing
