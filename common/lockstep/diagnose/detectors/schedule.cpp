// Pitfalls of a schedule's length and unit: how far it moves for an update, and how far it was made to go.
#include <lockstep/diagnose/courses.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/restored.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict scheduler_stepped_per_rank(const Run& run);
Verdict schedule_unit_mismatch(const Run& run);
Verdict schedule_length_ignores_world_size(const Run& run);
Verdict schedule_ends_elsewhere(const Run& run);
}  // namespace

// All need updates and a schedule, and all but schedule-length-ignores-world-size the steps that it was made for.
std::vector<Detector> schedule_detectors() {
  return {
      // Rule: W steps for every update, and it is beyond its end before the run is. Not fooled by W steps for every
      // update of a schedule that is W times as long.
      {.slug = "scheduler-stepped-per-rank",
       .equation = Equation::rates,
       .whole = true,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .complete = false,
       .accounts_for = {"schedule-ends-elsewhere"},
       .detect = scheduler_stepped_per_rank},
      // Rule: one step a pass, though it has as many as the run has updates, or about as many, over a thousand and
      // over a hundred a pass; or one step an update, beyond its end, where the rate goes on changing. Needs passes,
      // and a run that ended in order, for the former. Not fooled by a schedule made for passes, nor by a warm-up that
      // ends and leaves the rate to the program. A run that stopped of itself after as many updates as its plan has
      // passes looks the same; after about as many, not_triggered.
      {.slug = "schedule-unit-mismatch",
       .equation = Equation::rates,
       .whole = true,
       .needs = {"schedule", "update"},
       .level = 2,
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .accounts_for = {"schedule-ends-elsewhere"},
       .detect = schedule_unit_mismatch},
      // Needs a run that ended in order. Rule: at its pace the schedule would take W times as many updates as the run.
      // Where it does not say how long it is: its rates fall along half a cosine that ends there, or,
      // as advice, in a line.
      // Not fooled by one that counts all ranks' samples, whose pace is their number, nor by a run that was killed;
      // one that stopped of itself after exactly 1/W of its plan looks the same, so it is advice where the optimizer
      // was saved after the last update.
      {.slug = "schedule-length-ignores-world-size",
       .equation = Equation::rates,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .complete = false,
       .accounts_for = {"schedule-ends-elsewhere"},
       .detect = schedule_length_ignores_world_size},
      // Advice. Rule: one and a half steps an update or more, and beyond its end before the run is; or always as many,
      // and the run ended in order, and the schedule has gone at most 0.55 of its way; or it has about as many steps
      // as the run has updates, 16 at least, and takes less than a quarter of them. Not fooled by a run that stopped
      // somewhat early, or by one step an update beyond the end, as after a warm-up.
      {.slug = "schedule-ends-elsewhere",
       .equation = Equation::rates,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = schedule_ends_elsewhere},
  };
}

namespace {
// Made for as many updates as the run has; or for more steps than anyone plans passes who makes a hundredth of them.
bool is_made_for_no_passes(const Course& course) {
  return course.length == course.updates() ||
         (course.length > 1000 && course.length > 100 * course.passes());
}

// Its rate goes on changing after its last step, and with most updates: the program may lower it now and then itself.
bool moves_beyond_its_end(const Course& course) {
  std::int64_t looked = 0, moved = 0;
  for (std::size_t i = 1; i < course.rates.size(); ++i) {
    if (course.positions[i - 1] < course.length) continue;
    ++looked;
    const double before = course.rates[i - 1];
    if (std::abs(course.rates[i] - before) > 1e-9 * std::abs(before)) ++moved;
  }
  return looked >= 8 && 2 * moved > looked;
}

Verdict scheduler_stepped_per_rank(const Run& run) {
  Verdict why;
  const auto course = course_of(run, &why);
  if (!course) return why;
  const auto pace = course->pace();
  if (pace != run.world_size || course->positions.back() <= 1.1 * course->length) return clean();
  return found(
      {.ranks = run.numbers,
       .step = 0,
       .evidence = fmt::format(
           "{} and takes {} for every update, one for each rank: it is at its end after {} of {}",
           made_for(*course), *pace, (course->length + *pace - 1) / *pace,
           plural(course->updates(), "update"))});
}

Verdict schedule_unit_mismatch(const Run& run) {
  Verdict why;
  const auto course = course_of(run, &why);
  if (!course) return why;
  const auto updates = static_cast<double>(course->updates());
  const auto length = static_cast<double>(course->length);
  const auto stands =
      fmt::format(" and stands at {} after {} in {}", course->positions.back(),
                  plural(course->updates(), "update"), plural(course->passes(), "pass"));
  // It may be made for updates: about as long as the run in updates, of this rank or of one rank alone, and far longer
  // than it is in passes.
  const bool may_be_of_updates = length >= 0.5 * updates &&
                                 length <= 1.1 * updates * run.world_size &&
                                 course->length > 2 * course->passes();
  if (course->moves_once_a_pass() && may_be_of_updates) {
    if (!course->ended)
      return not_triggered("the run did not end in order, and more passes may have been to come");
    if (!is_made_for_no_passes(*course))
      return not_triggered(
          fmt::format("{} and takes one a pass{}: whether its steps are updates, or passes of "
                      "which most were not made, was not recorded",
                      made_for(*course), stands));
    return found({.ranks = run.numbers,
                  .step = static_cast<std::int64_t>(course->pass_begins[1]),
                  .evidence = fmt::format("{}, takes one a pass{}", made_for(*course), stands)});
  }
  if (course->pace() == 1 && updates > 1.05 * length && moves_beyond_its_end(*course))
    return found({.ranks = run.numbers,
                  .step = course->length,
                  .evidence = fmt::format(
                      "{}, takes one an update{}: its rate goes on changing after its end",
                      made_for(*course), stands)});
  return clean();
}

// A rank saved its optimizer after the last update: a job that is to go on does.
bool may_go_on(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    bool saved = false;
    for (const auto& event : rank->events) {
      if (event.template is<trace::Update>()) saved = false;
      const auto* state = event.template as<trace::TrainingState>();
      if (state != nullptr && state->moment == "saved")
        saved = part(*state, "optimizer").has_value();
    }
    return saved;
  });
}

// Of a schedule that does not say how long it is, one step an update: by its rates.
std::optional<Course> course_by_curve(const Run& run, bool* is_line) {
  auto course = course_of(*run.ranks.front());
  const auto curve = curve_of(course.rates);
  if (course.length > 0 || !curve || course.pace() != 1) return std::nullopt;
  course.length = curve->end;
  *is_line = curve->is_line;
  course.ended = course.ended && ended_in_order(run);
  return course;
}

Verdict schedule_length_ignores_world_size(const Run& run) {
  Verdict why;
  auto course = course_of(run, &why);
  bool is_line = false;
  const auto by_curve = course ? std::nullopt : course_by_curve(run, &is_line);
  if (!course) course = by_curve;
  if (!course) return why;
  const auto pace = course->pace();
  if (!pace || *pace <= 0 || course->positions.back() >= course->length) return clean();
  if (!course->ended) return not_triggered("the run did not end in order");
  // A pass of one rank alone has W times as many batches, but for the rounding to whole ones: 1 + W (n - 1) to W (n +
  // 1) where a share has n.
  const std::int64_t updates = course->updates(), passes = course->passes(), ranks = run.world_size;
  const auto least = *pace * (ranks * (updates - passes) + passes);
  const auto most = *pace * ranks * (updates + passes);
  if (course->length < least || course->length > most ||
      static_cast<double>(course->length) < 1.2 * static_cast<double>(*pace * updates))
    return clean();
  const bool goes_on = may_go_on(run);
  return found({.severity = goes_on || is_line ? Severity::advice : Severity::violation,
                .ranks = run.numbers,
                .step = course->updates() - 1,
                .evidence = fmt::format(
                    "{}, takes {} an update and stands at {} when the run ends: it is as many "
                    "times too long as there are ranks{}",
                    by_curve ? "the rates fall along a curve of " + plural(course->length, "step")
                             : made_for(*course),
                    *pace, course->positions.back(),
                    goes_on   ? ", unless the job is to go on from what it saved last"
                    : is_line ? ", unless they are to fall no further"
                              : "")});
}

// It has a step for each update, and takes few of them, as where it is stepped once a pass; or it is stepped more than
// once an update, as where each micro-batch steps it, and is at its end before the run is; or it is hardly past the
// middle when the run ends.
Verdict schedule_ends_elsewhere(const Run& run) {
  Verdict why;
  const auto course = course_of(run, &why);
  if (!course) return why;
  const auto pace = course->pace();
  const auto stands = course->positions.back();
  const auto off = std::abs(course->length - course->updates());
  if (course->ended && 20 * off <= course->updates() && course->length >= 16 &&
      4 * stands < course->length) {
    const auto moved = std::find_if(course->positions.begin(), course->positions.end(),
                                    [](auto position) { return position > 0; });
    return found(
        {.severity = Severity::advice,
         .ranks = run.numbers,
         .step = std::min(moved - course->positions.begin(), course->updates() - 1),
         .evidence = fmt::format(
             "{}, about as many as there are updates, and stands at {} when the run ends after {}",
             made_for(*course), stands, plural(course->updates(), "update"))});
  }
  const auto [least, most] = course->paces();
  if (least <= 0) return clean();
  const auto takes = fmt::format("{} and takes {}{} an update: it ", made_for(*course), least,
                                 least < most ? fmt::format(" to {}", most) : "");
  Finding finding{.severity = Severity::advice, .ranks = run.numbers};
  // From the second update on: a job that resumes may not tell where its schedule stands before it steps it.
  const bool several = 2 * (stands - course->positions[1]) >= 3 * (course->updates() - 1);
  if (several && static_cast<double>(stands) > 1.1 * static_cast<double>(course->length)) {
    finding.step =
        std::lower_bound(course->positions.begin(), course->positions.end(), course->length) -
        course->positions.begin();
    finding.evidence = fmt::format("{}is at its end after {} of {}", takes, finding.step,
                                   plural(course->updates(), "update"));
    return found(std::move(finding));
  }
  if (!pace) return clean();
  if (static_cast<double>(stands) > 0.55 * static_cast<double>(course->length)) return clean();
  if (!course->ended && !course->leaves_passes)
    return not_triggered("the run did not end in order");
  finding.step = course->updates() - 1;
  finding.evidence = fmt::format("{}stands at {} when the run ends after {}", takes, stands,
                                 plural(course->updates(), "update"));
  return found(std::move(finding));
}

}  // namespace
}  // namespace lockstep::diagnose
