#include "../forms.h"

namespace lockstep::testing {
namespace {

double one_part(int world_size) {
  return 1.0 / world_size;
}

}  // namespace

std::vector<FormCase> forms_16() {
  return {
      right("correct-evaluation"),
      {.form = "rank-zero-metric",
       .observed = always(1e-7),
       .min_world_size = 2,
       .at_least = true,
       .advice = true},
      exactly("local-hits-global-count", one_part, 2, 1e-9),
      right("near-miss-everyone-scores-everything"),
      right("near-miss-every-rank-prints-its-own"),
      right("near-miss-count-is-known"),
      right("correct-contrastive"),
      exactly("gather-loses-graph", one_part, 2, 1e-3),
      right("near-miss-loss-times-world-size"),
      right("near-miss-own-rows"),
      right("correct-logged-loss"),
      exactly("loss-all-reduced-in-place", one_part, 2, 1e-3),
      right("near-miss-reduced-after-backward"),
      right("near-miss-reduced-with-gradient"),
  };
}

}  // namespace lockstep::testing
