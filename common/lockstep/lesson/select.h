// A lesson's variants, by name.
#pragma once

#include <lockstep/lesson/lesson.h>
#include <lockstep/report/lesson_report.h>

#include <string>
#include <vector>

namespace lockstep {

// A variant by name, and where it belongs.
struct Selected {
  const Part* part = nullptr;
  report::Kind kind = report::Kind::correct;
  std::string name;
  std::string what;
  int min_world_size = 1;
  std::vector<std::string> judged_by;  // slugs of the oracles that apply
  bool own_gpus = false;               // as Broken has it
  bool alone = false;                  // likewise
};

// Every variant of the lesson, in order; or those that `wanted` selects: "all", "correct", a name. Throws UsageError for an
// unknown one.
std::vector<Selected> select_variants(const Lesson& lesson, const std::string& wanted);

// Throws Error where the part has no such pitfall.
const Broken& broken_of(const Part& part, const std::string& slug);

}  // namespace lockstep
