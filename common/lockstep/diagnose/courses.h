// How a rank's schedule moves beside its updates.
#pragma once

#include <lockstep/diagnose/finding.h>
#include <lockstep/diagnose/run.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::diagnose {

// One rank's schedule beside its updates.
struct Course {
  std::int64_t length = 0;               // steps it was made for
  std::vector<std::int64_t> positions;   // in force at each update; one more for the end
  std::vector<std::size_t> pass_begins;  // the update that each train pass begins with
  std::vector<double> rates;             // of each update, its first group's
  bool ended = false;                    // in order: every pass that began, and the trace
  bool leaves_passes = false;            // the trace ended in order, and none of several passes

  std::int64_t updates() const { return static_cast<std::int64_t>(rates.size()); }
  std::int64_t passes() const { return static_cast<std::int64_t>(pass_begins.size()); }

  // Steps for an update, the fewest and the most. Fewer may follow the last update.
  std::pair<std::int64_t, std::int64_t> paces() const;
  std::optional<std::int64_t> pace() const;  // where they are always as many
  bool moves_once_a_pass() const;            // one step between two passes, and none within
};

Course course_of(const trace::ParticipantTrace& rank);
// The first rank's; all ranks' schedules stand alike, or their rates would tell (update-differs). Nothing, and `why`, where
// the steps that it was made for are not known.
std::optional<Course> course_of(const Run& run, Verdict* why);

std::string made_for(const Course& course);  // "the schedule was made for 60 steps"

// The update at which rates that fall in a line, or along half a cosine, come to 0. A line may be meant to end before.
struct Curve {
  std::int64_t end = 0;
  bool is_line = false;
};
std::optional<Curve> curve_of(
    const std::vector<double>& rates);  // nothing where they fall otherwise

}  // namespace lockstep::diagnose
