// How ./lockstep ends, whatever it did.
#pragma once

namespace lockstep::course {

enum ExitCode {
  kOk = 0,       // as expected, nothing found
  kFinding = 1,  // or a wrong verdict
  kUsage = 2,
  kCouldNotRun = 3,
  kSkipped = 77,
  kDeadline = 124,
  kInterrupted = 130
};

}  // namespace lockstep::course
