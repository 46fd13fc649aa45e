#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_07() {
  return {
      right("correct-loading"),
      exactly("load-without-map-location", [](int w) { return w - 1; }),
      exactly("optimizer-state-on-wrong-device", always(8), 1, 0, "crash"),
      exactly("module-prefix", always(8), 1, 0, "crash"),
      right("near-miss-through-the-cpu"),
      right("near-miss-load-state-dict-moves"),
      right("near-miss-wrapped-both-ways"),

      right("correct-state"),
      at_least("optimizer-state-missing", 1e-3, 1),
      at_least("scheduler-or-rng-state-missing", 1e-3, 1),
      at_least("ema-on-one-rank", 1e-8),
      right("near-miss-optimizer-in-its-own-file"),
      right("near-miss-schedule-counted-again"),
      right("near-miss-average-is-rank-zeros"),

      right("correct-position"),
      exactly("resume-repeats-epoch", always(48), 1),
      exactly(
          "resume-mid-epoch-replays", [](int w) { return 48 * w; }, 1),
      right("near-miss-file-names-the-next-epoch"),
      right("near-miss-drawn-batches-thrown-away"),

      right("correct-writing"),
      at_least("read-before-written", 1e-3),
      exactly("concurrent-writers", always(0), 2, 0, "crash"),
      right("near-miss-waits-by-broadcast"),
      right("near-miss-file-a-rank"),

      right("correct-nodes"),
      exactly("local-rank-zero-writes", always(0), 2, 0, "crash"),
      right("near-miss-folder-a-node"),

      right("correct-killed"),
      exactly("torn-checkpoint", always(0), 1, 0, "crash"),
      right("near-miss-older-file-is-kept"),
  };
}

}  // namespace lockstep::testing
