// Builds a mended exercise and runs it beside the lesson's own correct variant.
#pragma once

#include <lockstep/base/countdown.h>
#include <lockstep/course/exercise.h>

#include <exception>
#include <string>
#include <vector>

namespace lockstep::course {

// Somebody pressed Ctrl-C: there is no verdict.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted; nothing was judged"; }
};

struct CheckResult {
  std::vector<std::string> wrong;  // empty: it is solved
  std::string compiler;            // what it said, where it could not be built
};

// On two world sizes and seeds that are drawn anew each time. `output` is where it says what it is at. Throws Error where the
// check itself cannot be made.
CheckResult check(const Exercise& exercise, const std::string& mended,
                  const Countdown::Output& output);

}  // namespace lockstep::course
