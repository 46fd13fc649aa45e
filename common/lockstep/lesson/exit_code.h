// How a lesson's program ends: for the shell, for ctest, and for a rank's launcher.
#pragma once

namespace lockstep {

enum ExitCode {
  kAsExpected = 0,
  kWrongVerdict = 1,
  kUsage = 2,
  kCouldNotRun = 3,
  kSkipped = 77,  // something that the run needs is not here
  kDeadline = 124
};

}  // namespace lockstep
