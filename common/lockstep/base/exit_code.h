// How a program of this project ends: for the shell, for ctest, and for a rank's launcher.
#pragma once

namespace lockstep {

enum ExitCode {
  kOk = 0,       // as expected, nothing found
  kFinding = 1,  // or a wrong verdict
  kUsage = 2,
  kCouldNotRun = 3,
  kSkipped = 77,  // something that the run needs is not here
  kDeadline = 124,
  kInterrupted = 130
};

}  // namespace lockstep
