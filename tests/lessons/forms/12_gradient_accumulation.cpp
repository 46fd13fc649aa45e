#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_12() {
  return {
      right("correct-syncing"),
      {.form = "sync-every-microbatch", .observed = always(4), .min_world_size = 2, .advice = true},
      exactly("no-sync-around-backward-only", always(4)),
      right("near-miss-many-buckets"),
      right("near-miss-loss-logged"),
      right("correct-dividing"),
      exactly("accumulation-not-divided", always(4), 1, 1e-3),
      exactly("accumulation-off-by-one", always(1), 1),
      right("near-miss-gradients-divided"),
      right("near-miss-short-last-group"),
      right("correct-uneven"),
      at_least("mean-of-microbatch-means", 0.1, 1),
      right("near-miss-weighted-means"),
      right("correct-last-window"),
      // Two microbatches of 16 samples a rank, in each of two epochs.
      exactly(
          "last-accumulation-window-lost", [](int w) { return 64.0 * w; }, 1),
      right("near-miss-carried-over"),
      right("near-miss-tail-not-drawn"),
  };
}

}  // namespace lockstep::testing
