#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_01() {
  return {
      right("correct"),
      at_least("gradients-not-zeroed", 0.3, 1),
      right("near-miss-accumulation"),
  };
}

}  // namespace lockstep::testing
