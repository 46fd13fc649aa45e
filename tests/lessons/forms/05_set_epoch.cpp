#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_05() {
  return {
      right("correct"),
      exactly("missing-set-epoch", always(1), 1),
      exactly("set-epoch-on-copy", always(1), 1),
      at_least("epoch-differs-by-rank", 1),
      exactly("epoch-set-after-prefetch", always(32), 1),
      right("near-miss-reseeded"),
      right("near-miss-begun-before-set-epoch"),

  };
}

}  // namespace lockstep::testing
