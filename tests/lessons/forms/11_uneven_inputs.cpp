#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_11() {
  return {
      right("correct-ending"),          exactly("uneven-batches", always(0), 2, 0, "crash"),
      right("near-miss-agreed-count"),  right("near-miss-empty-batches"),
      right("correct-weights"),         at_least("mean-of-local-means", 0.02),
      right("near-miss-equal-batches"), right("near-miss-sum-and-count"),
  };
}

}  // namespace lockstep::testing
