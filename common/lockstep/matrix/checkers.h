// Asks a checker about a case. It is given the traces and nothing else: no truth, no name, no path that tells.
#pragma once

#include <lockstep/matrix/cases.h>
#include <lockstep/trace/levels.h>

#include <chrono>
#include <string>

namespace lockstep::matrix {

// Our own detectors (diagnose/), of what a run of this level would have recorded (trace/levels.h). not_triggered:
// the one of this pitfall lacked what it needs; of a healthy run, all of them did.
Answer ask_detectors(const Case& one, int level = trace::kLevels - 1);

// The level from which on our detector of this pitfall can see it; 0 for one that there is none of.
int level_needed(const std::string& pitfall);

// Any program: `command FOLDER`, run by the shell, where FOLDER holds copies of the traces under a name that says
// nothing. It prints {"findings": [{"pitfall", "ranks", "step", "severity"}]} on stdout (the last three may
// be missing; severity is "violation" or "advice"), or {"not_triggered": true}. Anything else, an exit code
// above 1, and no answer within `deadline` is an error; of 126 and 127, by which a shell says that it has started
// nothing, it is `not_started`. Throws Error for a case without traces.
Answer ask_program(const Case& one, const std::string& command, std::chrono::seconds deadline);

}  // namespace lockstep::matrix
