// Schedules that step otherwise than their optimizer's updates, whatever length they were made for.
#include <lockstep/diagnose/courses.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <map>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict schedule_stepped_again(const Run& run);
Verdict optimizer_without_schedule(const Run& run);
Verdict schedule_begins_anew(const Run& run);
}  // namespace

std::vector<Detector> schedule_steps_detectors() {
  return {
      // Advice. Rule: a schedule that does not say how long it is always takes several steps an update. Not as many as
      // there are ranks: then it may count the batches of all of them (a reading of the ledger).
      {.slug = "schedule-stepped-again",
       .equation = Equation::rates,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = schedule_stepped_again},
      // Advice. Rule: two schedules of a kind step one optimizer's rates, and another one that trains has none.
      {.slug = "optimizer-without-schedule",
       .equation = Equation::rates,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = optimizer_without_schedule},
      // Advice. Rule: the last attempt goes on with a later pass, and its schedule, which is as long, takes its first
      // steps again; or a rank goes on so from a checkpoint that it saved later in its schedule. Not fooled by an attempt
      // that begins with the first pass again.
      {.slug = "schedule-begins-anew",
       .equation = Equation::rates,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = schedule_begins_anew},
  };
}

namespace {
Verdict schedule_stepped_again(const Run& run) {
  const auto course = course_of(*run.ranks.front());
  if (course.length > 0) return clean();  // schedule-ends-elsewhere looks at it
  if (course.updates() < 8) return not_triggered("fewer than eight updates were recorded");
  const auto pace = course.pace();
  if (!pace || *pace < 2 || *pace == run.world_size) return clean();
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = 0,
                .evidence = fmt::format(
                    "the schedule takes {} steps for every update, and stands at {} after {}: is "
                    "it stepped in two places, or for each micro-batch?",
                    *pace, course.positions.back(), plural(course.updates(), "update"))});
}

Verdict optimizer_without_schedule(const Run& run) {
  const auto twins = run.ranks.front()->latest<trace::ScheduleTwins>();
  if (twins.empty()) return clean();
  const auto& told = *twins.front().event;
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = 0,
                .evidence = fmt::format("{} schedules of the class {} step the rates of one "
                                        "optimizer, and another one that trains has no schedule",
                                        told.count, told.schedule)});
}

// Some attempts of a job: their first train pass, the step of their first update, and the schedule's position after
// that update and at the end. Before the first update a program may still load the schedule's state.
struct StretchOfRates {
  std::optional<std::int64_t> pass, step, after_first;
  std::int64_t last = 0, length = 0;
};

StretchOfRates stretch_of(const trace::ParticipantTrace& rank, std::size_t begin, std::size_t end) {
  StretchOfRates stretch;
  for (std::size_t i = begin; i < end; ++i) {
    const auto& event = rank.events[i];
    if (const auto* pass = event.as<trace::PassBegin>()) {
      if (pass->phase == "train" && !stretch.pass) stretch.pass = pass->epoch;
    } else if (event.is<trace::Update>()) {
      if (!stretch.step) stretch.step = event.step;
    } else if (const auto* schedule = event.as<trace::Schedule>()) {
      if (stretch.step && !stretch.after_first) stretch.after_first = schedule->position;
      stretch.last = schedule->position;
      stretch.length = schedule->length;
    }
  }
  return stretch;
}

// The rank goes on from a checkpoint that it saved when the schedule stood further on, and takes the schedule's first step.
std::optional<Finding> begins_anew_after_load(const Run& run) {
  std::map<std::uint64_t, std::int64_t> saved;  // where the schedule stood, by the file's content
  std::int64_t position = 0, stood = 0;
  bool updated = false;  // since the load
  for (const auto& event : run.ranks.front()->events) {
    updated = updated || event.is<trace::Update>();
    if (const auto* file = event.as<trace::CheckpointFile>()) {
      if (file->action == "save_end") saved[file->content] = position;
      if (file->action != "load" || !file->accepted) continue;
      const auto found = saved.find(file->content);
      stood = found == saved.end() ? 0 : found->second;
      updated = false;
    }
    const auto* schedule = event.as<trace::Schedule>();
    if (schedule == nullptr) continue;
    if (position = schedule->position; !updated || stood == 0) continue;
    if (position == 1 && stood > 1)
      return Finding{
          .severity = Severity::advice,
          .ranks = run.numbers,
          .step = event.step - 1,
          .evidence = fmt::format("the schedule stood at {} when the checkpoint was saved, and "
                                  "begins anew where the rank goes on from it",
                                  stood)};
    stood = 0;
  }
  return std::nullopt;
}

// The last attempt goes on with a later pass than the ones before began with, and takes the schedule's first steps again.
Verdict schedule_begins_anew(const Run& run) {
  if (auto finding = begins_anew_after_load(run)) return found(std::move(*finding));
  const auto& rank = *run.ranks.front();
  const auto before = stretch_of(rank, 0, rank.last_attempt);
  const auto now = stretch_of(rank, rank.last_attempt, rank.events.size());
  const bool goes_on = before.pass && now.pass && *now.pass > *before.pass;
  const bool moved = before.after_first && before.last > *before.after_first;
  // A schedule made for the remaining steps begins at 0, too. Without a length nobody can tell.
  const bool is_as_long = now.length > 0 && now.length == before.length;
  if (!goes_on || !moved || !is_as_long || now.after_first != before.after_first) return clean();
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = *now.step,
                .evidence = fmt::format("the last attempt goes on with pass {}, and the schedule, "
                                        "which stood at {}, begins anew",
                                        *now.pass, before.last)});
}

}  // namespace
}  // namespace lockstep::diagnose
