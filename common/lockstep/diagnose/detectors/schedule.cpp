// Pitfalls of a schedule's length and unit: how far it moves for an update, and how far it was made to go.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/restored.h>
#include <lockstep/diagnose/stall.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace lockstep::diagnose {
namespace {

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

  // Steps for an update, the fewest and the most. None need follow the last update.
  std::pair<std::int64_t, std::int64_t> paces() const {
    auto least = positions[1] - positions[0], most = least;
    for (std::size_t i = 1; i + 1 < positions.size(); ++i) {
      const auto pace = positions[i + 1] - positions[i];
      if (i + 2 == positions.size() && pace == 0) break;
      least = std::min(least, pace);
      most = std::max(most, pace);
    }
    return {least, most};
  }
  // Where they are always as many.
  std::optional<std::int64_t> pace() const {
    const auto [least, most] = paces();
    return least == most ? std::optional(least) : std::nullopt;
  }
  // One step between two passes, and none within.
  bool moves_once_a_pass() const {
    for (std::size_t i = 1; i < rates.size(); ++i) {
      const bool begins = std::binary_search(pass_begins.begin(), pass_begins.end(), i);
      if (positions[i] - positions[i - 1] != (begins ? 1 : 0)) return false;
    }
    return passes() > 1;
  }
};

Course course_of(const trace::ParticipantTrace& rank) {
  Course course;
  std::int64_t position = 0, begun = 0, ended = 0;
  bool told = false;         // a schedule, since the last update
  bool are_several = false;  // schedules: none of them tells when all end
  for (const auto& event : rank.events) {
    if (event.as<trace::Engine>() != nullptr && !course.rates.empty()) {
      course = {};  // what was trained before was another model
      begun = ended = 0;
      told = are_several = false;
    } else if (const auto* schedule = event.as<trace::Schedule>()) {
      position = schedule->position;
      are_several = are_several || (told && schedule->length != course.length);
      course.length = schedule->length;
      told = true;
    } else if (const auto* update = event.as<trace::Update>()) {
      course.positions.push_back(position);
      course.rates.push_back(update->lr.empty() ? 0.0 : update->lr.front());
      told = false;
    } else if (const auto* begin = event.as<trace::PassBegin>()) {
      if (begin->phase != "train") continue;
      course.pass_begins.push_back(course.rates.size());
      ++begun;
    } else if (const auto* end = event.as<trace::PassEnd>()) {
      if (end->phase == "train") ++ended;
    }
  }
  course.positions.push_back(position);
  if (are_several) course.length = 0;
  course.ended = rank.closed && begun == ended;
  course.leaves_passes = rank.closed && ended == 0 && begun > 1;
  return course;
}

// The first rank's; all ranks' schedules stand alike, or their rates would tell (update-differs).
std::optional<Course> course_of(const Run& run, Verdict* why) {
  auto course = course_of(*run.ranks.front());
  if (!ended_in_order(run)) course.ended = course.leaves_passes = false;
  if (course.length <= 0)
    *why = not_triggered("no schedule and the steps it was made for were recorded");
  else if (course.updates() < 4)
    *why = not_triggered("fewer than four updates were recorded");
  else
    return course;
  return std::nullopt;
}

std::string made_for(const Course& course) {
  return "the schedule was made for " + plural(course.length, "step");
}

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
  return found({.ranks = run.numbers,
                .step = 0,
                .evidence = made_for(*course) + " and takes " + std::to_string(*pace) +
                            " for every update, one for each rank: it is at its end after " +
                            std::to_string((course->length + *pace - 1) / *pace) + " of " +
                            plural(course->updates(), "update")});
}

// Hugging Face's Accelerate steps a schedule once for each rank, so that it may count batches of all ranks.
bool runs_under_accelerate(const Run& run) {
  for (const auto& at : run.ranks.front()->all<trace::Configuration>())
    if (at.event->of == "program" &&
        std::count(at.event->keys.begin(), at.event->keys.end(), "version of accelerate") > 0)
      return true;
  return false;
}

// Nothing says how long it is, and it always takes several steps an update.
std::optional<Finding> takes_several(const Run& run) {
  const auto course = course_of(*run.ranks.front());
  if (course.length > 0 || course.updates() < 8) return std::nullopt;
  const auto pace = course.pace();
  if (!pace || *pace < 2) return std::nullopt;
  if (*pace == run.world_size && runs_under_accelerate(run)) return std::nullopt;
  return Finding{.severity = Severity::advice,
                 .ranks = run.numbers,
                 .step = 0,
                 .evidence = "the schedule takes " + std::to_string(*pace) +
                             " steps for every update, and stands at " +
                             std::to_string(course.positions.back()) + " after " +
                             plural(course.updates(), "update") +
                             ": is it stepped in two places, or for each micro-batch?"};
}

// Two of a kind step one optimizer's rates, and another optimizer has none.
std::optional<Finding> are_on_one_optimizer(const Run& run) {
  for (const auto& at : run.ranks.front()->latest<trace::Configuration>())
    if (at.event->of == "schedules" && !at.event->keys.empty() && !at.event->values.empty())
      return Finding{.severity = Severity::advice,
                     .ranks = run.numbers,
                     .step = 0,
                     .evidence = at.event->values.front() + " schedules of the class " +
                                 at.event->keys.front() +
                                 " step the rates of one optimizer, and another one that trains "
                                 "has no schedule"};
  return std::nullopt;
}

Verdict schedule_unit_mismatch(const Run& run) {
  if (auto finding = are_on_one_optimizer(run)) return found(std::move(*finding));
  if (auto finding = takes_several(run)) return found(std::move(*finding));
  Verdict why;
  const auto course = course_of(run, &why);
  if (!course) return why;
  const auto updates = static_cast<double>(course->updates());
  const auto length = static_cast<double>(course->length);
  const auto stands = " and stands at " + std::to_string(course->positions.back()) + " after " +
                      plural(course->updates(), "update") + " in " +
                      std::to_string(course->passes()) +
                      (course->passes() == 1 ? " pass" : " passes");
  // It may be made for updates: about as long as the run in updates, of this rank or of one rank alone, and far longer
  // than it is in passes.
  const bool may_be_of_updates = length >= 0.5 * updates &&
                                 length <= 1.1 * updates * run.world_size &&
                                 course->length > 2 * course->passes();
  if (course->moves_once_a_pass() && may_be_of_updates) {
    if (!course->ended)
      return not_triggered("the run did not end in order, and more passes may have been to come");
    if (!is_made_for_no_passes(*course))
      return not_triggered(made_for(*course) + " and takes one a pass" + stands +
                           ": whether its steps are updates, or passes of which most were not " +
                           "made, was not recorded");
    return found({.ranks = run.numbers,
                  .step = static_cast<std::int64_t>(course->pass_begins[1]),
                  .evidence = made_for(*course) + ", takes one a pass" + stands});
  }
  if (course->pace() == 1 && updates > 1.05 * length && moves_beyond_its_end(*course))
    return found({.ranks = run.numbers,
                  .step = course->length,
                  .evidence = made_for(*course) + ", takes one an update" + stands +
                              ": its rate goes on changing after its end"});
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

Verdict schedule_length_ignores_world_size(const Run& run) {
  Verdict why;
  const auto course = course_of(run, &why);
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
  return found(
      {.severity = goes_on ? Severity::advice : Severity::violation,
       .ranks = run.numbers,
       .step = course->updates() - 1,
       .evidence = made_for(*course) + ", takes " + std::to_string(*pace) +
                   " an update and stands at " + std::to_string(course->positions.back()) +
                   " when the run ends: it is as many times too long as there are ranks" +
                   (goes_on ? ", unless the job is to go on from what it saved last" : "")});
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

// The last attempt goes on with a later pass than the ones before began with, and takes the schedule's first steps again.
std::optional<Finding> begins_anew(const Run& run) {
  const auto& rank = *run.ranks.front();
  const auto before = stretch_of(rank, 0, rank.last_attempt);
  const auto now = stretch_of(rank, rank.last_attempt, rank.events.size());
  const bool goes_on = before.pass && now.pass && *now.pass > *before.pass;
  const bool moved = before.after_first && before.last > *before.after_first;
  // A schedule made for the remaining steps begins at 0, too. Without a length nobody can tell.
  const bool is_as_long = now.length > 0 && now.length == before.length;
  if (!goes_on || !moved || !is_as_long || now.after_first != before.after_first)
    return std::nullopt;
  return Finding{.severity = Severity::advice,
                 .ranks = run.numbers,
                 .step = *now.step,
                 .evidence = "the last attempt goes on with pass " + std::to_string(*now.pass) +
                             ", and the schedule, which stood at " + std::to_string(before.last) +
                             ", begins anew"};
}

// It has a step for each update, and takes few of them, as where it is stepped once a pass; or it is stepped more than
// once an update, as where each micro-batch steps it, and is at its end before the run is; or it is hardly past the
// middle when the run ends.
Verdict schedule_ends_elsewhere(const Run& run) {
  if (auto finding = begins_anew(run)) return found(std::move(*finding));
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
    return found({.severity = Severity::advice,
                  .ranks = run.numbers,
                  .step = std::min(moved - course->positions.begin(), course->updates() - 1),
                  .evidence = made_for(*course) + ", about as many as there are updates, and " +
                              "stands at " + std::to_string(stands) + " when the run ends after " +
                              plural(course->updates(), "update")});
  }
  const auto [least, most] = course->paces();
  if (least <= 0) return clean();
  const auto takes = made_for(*course) + " and takes " + std::to_string(least) +
                     (least < most ? " to " + std::to_string(most) : "") + " an update: it ";
  Finding finding{.severity = Severity::advice, .ranks = run.numbers};
  // From the second update on: a job that resumes may not tell where its schedule stands before it steps it.
  const bool several = 2 * (stands - course->positions[1]) >= 3 * (course->updates() - 1);
  if (several && static_cast<double>(stands) > 1.1 * static_cast<double>(course->length)) {
    finding.step =
        std::lower_bound(course->positions.begin(), course->positions.end(), course->length) -
        course->positions.begin();
    finding.evidence = takes + "is at its end after " + std::to_string(finding.step) + " of " +
                       plural(course->updates(), "update");
    return found(std::move(finding));
  }
  if (!pace) return clean();
  if (static_cast<double>(stands) > 0.55 * static_cast<double>(course->length)) return clean();
  if (!course->ended && !course->leaves_passes)
    return not_triggered("the run did not end in order");
  finding.step = course->updates() - 1;
  finding.evidence = takes + "stands at " + std::to_string(stands) + " when the run ends after " +
                     plural(course->updates(), "update");
  return found(std::move(finding));
}

}  // namespace

// All need updates and a schedule, and but for some of schedule-unit-mismatch the steps it was made for.
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
      // passes looks the same; after about as many, not_triggered. Advice: a schedule of unknown length steps twice or
      // more an update (under Accelerate, not once a rank), or two of a kind share an optimizer and another has none.
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
      // as the run has updates, 16 at least, and takes less than a quarter of them; or the last attempt goes on with a
      // later pass, and its schedule, which is as long, takes its first steps again. Not fooled by a run that stopped
      // somewhat early, by one step an update beyond the end, as after a warm-up, or by an attempt that begins with
      // the first pass again.
      {.slug = "schedule-ends-elsewhere",
       .equation = Equation::rates,
       .needs = {"schedule", "update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .generic = true,
       .detect = schedule_ends_elsewhere},
  };
}

}  // namespace lockstep::diagnose
