// Scores what a checker said of runs whose truth is known. Pure functions; nothing here knows a checker.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::matrix {

// What is known of a run, by its program and its oracle, never by a checker.
struct Truth {
  std::string name;                  // of the case
  std::string family;                // slugs of one family are alike: the lesson's number
  std::string pitfall;               // the slug; "" = healthy
  std::vector<int> ranks;            // those at fault; empty = not said
  std::optional<std::int64_t> step;  // the first at which it can be seen; nothing = not said
  bool applicable = true;            // false: cannot show at this world size, or without a GPU
};

struct Named {
  std::string pitfall;
  bool advice = false;
  std::vector<int> ranks;
  std::int64_t step = -1;
};

// What a checker said of a run.
struct Answer {
  enum class State {
    answered,
    not_triggered,  // it lacked what it needs to look for this pitfall (healthy: for any)
    error,          // it failed
    skipped,        // it was not run
  };
  State state = State::answered;
  std::vector<Named> findings;
  std::string reason = {};   // of an error
  bool not_started = false;  // error: it could not even be started
};

enum class Cell {
  // Of a run with a pitfall.
  exact,        // the slug, and the ranks and the step where the truth says them
  slug_only,    // the slug, with other ranks or another step
  family_only,  // another slug of its family, or one of the generic findings
  wrong_name,   // only other slugs
  missed,       // nothing, though it looked
  // Of a healthy run.
  clean,  // no violation (advice is no alarm)
  false_alarm,
  // Of either. None of these is a pass.
  not_triggered,
  not_applicable,
  error,
  skipped,
};
std::string to_string(Cell cell);

// Slug to family. The generic findings (`replicas-diverged` ...) belong to none.
using Families = std::map<std::string, std::string>;

Cell judge(const Truth& truth, const Answer& answer, const Families& families);
// Whether that is held against the checker. What was not asked is not, and neither is a healthy run that it could
// not look at, which proves nothing either way.
bool is_wrong(const Truth& truth, Cell cell);
// Findings beside the one asked for: all violations of a healthy run.
int noise(const Truth& truth, const Answer& answer);
// Between the first step at which it can be seen and the one named; nothing where either is not said.
std::optional<std::int64_t> steps_until_found(const Truth& truth, const Answer& answer);

// Successes of trials, with Wilson's 95 % interval; of no trials nothing is known.
struct Share {
  int successes = 0, trials = 0;
  std::optional<double> value() const;
  std::optional<double> low() const;
  std::optional<double> high() const;
  void count(bool success);
};

struct Totals {
  std::map<Cell, int> cells;
  int right = 0, wrong = 0;  // of what was asked: exact or clean; and is_wrong
  int not_looked_at = 0;     // the rest of it: healthy runs that it could not look at
  // Of the runs with a pitfall that could show and that the checker was run on: an error and a pitfall
  // that it lacked the events for are failures.
  Share exact, slug, family;
  Share false_alarms;  // of healthy runs that it was run on
  Share noisy;  // of all runs that it was run on, those with findings beside the one asked for
  std::optional<double> noise_a_run;
  std::optional<double> median_steps;
};

struct Scored {
  Truth truth;
  Answer answer;
};
Totals score(const std::vector<Scored>& runs, const Families& families);

}  // namespace lockstep::matrix
