// Runs a job whose ranks record traces, ends it where it stalls, and says who is to blame.
#pragma once

#include <lockstep/diagnose/stall.h>
#include <lockstep/launch/launch.h>
#include <lockstep/trace/reader.h>

#include <chrono>
#include <optional>
#include <string>

namespace lockstep::launch {

struct SuperviseOptions {
  LaunchOptions job;  // the ranks' traces (record::observe) are in job.folder
  // A rank that is inside of one collective for longer ends the job; 0: nobody does. At least
  // diagnose::kStallTime; a second more than the ranks' own timeout leaves them time to say what they
  // saw.
  std::chrono::milliseconds patience{0};
};

struct Supervised {
  LaunchResult launch;
  trace::Trace trace;  // what the ranks and the launcher left; none where no rank recorded anything
  std::optional<diagnose::Stall> stall;  // points into `trace`
};

// As launch::launch (blocks until every process is gone; throws what it throws, and UsageError for a
// patience that is too short). While the ranks
// run, their flight boards are read ten times a second. Afterwards folder/launcher.trace holds how
// each rank ended, for whoever diagnoses the folder. A trace that cannot be read throws Error, after
// the job is over.
Supervised supervise(const SuperviseOptions& options);

}  // namespace lockstep::launch
