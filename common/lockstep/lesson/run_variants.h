// Runs a lesson's variants, each as a job of its own, and has each judged (judge.h).
#pragma once

#include <lockstep/lesson/command_line.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/report/lesson_report.h>

#include <string>

namespace lockstep {

// Thrown by run_variants when a signal (Ctrl-C) ended the run; every rank is gone by then.
struct Interrupted {
  int signal = 0;
};

// Launches, waits and judges. `program` is this executable.
report::LessonReport run_variants(const Lesson& lesson, const LessonOptions& options,
                                  const std::string& program);

}  // namespace lockstep
