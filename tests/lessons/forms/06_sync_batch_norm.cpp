#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_06() {
  auto local = at_least("local-batch-norm", 0.05);
  local.advice = true;
  return {
      right("correct-by-hand"),
      local,
      at_least("unequal-counts-in-sync", 1e-3),
      right("near-miss-frozen-statistics", 2),
      right("near-miss-equal-counts", 2),
      right("correct-buffers"),
      at_least("buffers-not-synced", 1e-2),
      right("near-miss-averaged-each-epoch", 2),
      right("correct-modes"),
      exactly("train-mode-differs-across-ranks", always(3)),
      right("near-miss-frozen-on-all-ranks", 2),
      right("correct-two-views"),
      exactly("buffer-sync-inside-backward", always(0), 2, 0, "crash"),
      right("near-miss-first-view-in-no-sync", 2),
      right("correct-conversion"),
      at_least("sync-bn-after-wrapping", 1e-3),
      right("near-miss-converted-in-place", 2),
  };
}

}  // namespace lockstep::testing
