#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_02() {
  return {
      right("correct-batch"),
      exactly("odd-batch-split", always(11), 2, 0, "crash"),
      at_least("unequal-chunk-mean", 0.01),
      right("correct-buffers"),
      at_least("replica-buffers-lost", 0.01),
      right("near-miss-frozen-statistics"),
      right("correct-bottleneck"),
      {.form = "device-zero-bottleneck",
       .observed = always(1),
       .min_world_size = 2,
       .advice = true},
  };
}

}  // namespace lockstep::testing
