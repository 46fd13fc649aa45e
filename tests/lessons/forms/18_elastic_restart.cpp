#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_18() {
  return {
      right("correct"),
      exactly("restart-without-resume", always(2)),
      exactly("restart-expected-by-default", always(2), 2, 0, "crash"),
      right("near-miss-died-before-a-checkpoint"),
      right("near-miss-nobody-fails"),
  };
}

}  // namespace lockstep::testing
