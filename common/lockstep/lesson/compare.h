// Runs a lesson's forms and judges each one: what the oracles measured, what the detectors named.
#pragma once

#include <lockstep/lesson/command_line.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/report/comparison.h>

#include <string>

namespace lockstep {

// A form by name, and where it belongs.
struct Selected {
  const Part* part = nullptr;
  report::Form form = report::Form::correct;
  std::string name;
  std::string what;
  int min_world_size = 1;
  std::vector<std::string> judged_by;  // slugs of the oracles that apply
  bool own_gpus = false;               // as Broken has it
};
// Every form of the lesson, in order; or those that `variant` selects. Throws UsageError for an
// unknown one.
std::vector<Selected> select_forms(const Lesson& lesson, const std::string& variant);

// Fills in a variant's losses, oracles, findings and pictures from the files its ranks left in `folder`.
void judge_run(const Selected& selected, const std::filesystem::path& folder, int outcomes,
               std::uint64_t seed, report::Variant& variant);

// A variant, and a comparison, with what is known before anything has run.
report::Variant variant_of(const Selected& selected, int world_size);
report::Comparison comparison_here(const Lesson& lesson, const LessonOptions& options);

// Thrown by compare when a signal (Ctrl-C) ended the run; every rank is gone by then.
struct Interrupted {
  int signal = 0;
};

// Launches, waits and judges. `program` is this executable.
report::Comparison compare(const Lesson& lesson, const LessonOptions& options,
                           const std::string& program);

}  // namespace lockstep
