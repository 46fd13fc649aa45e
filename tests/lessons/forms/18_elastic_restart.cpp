#include "../forms.h"

namespace lockstep::testing {

std::vector<FormCase> forms_18() {
  auto by_default = exactly("restart-expected-by-default", always(2), 2, 0, "crash");
  by_default.advice = true;
  return {
      right("correct"),
      exactly("restart-without-resume", always(2)),
      by_default,
      right("near-miss-died-before-a-checkpoint"),
      right("near-miss-nobody-fails"),
  };
}

}  // namespace lockstep::testing
