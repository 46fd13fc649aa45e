// A lesson's forms, by name.
#pragma once

#include <lockstep/lesson/lesson.h>
#include <lockstep/report/comparison.h>

#include <string>
#include <vector>

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

// Every form of the lesson, in order; or those that `variant` selects: "all", "correct", a name. Throws UsageError for an
// unknown one.
std::vector<Selected> select_forms(const Lesson& lesson, const std::string& variant);

// Throws Error where the part has no such pitfall.
const Broken& broken_of(const Part& part, const std::string& slug);

}  // namespace lockstep
