// An exercise: the function that has a pitfall, with the fault in it, as a small file for somebody to mend.
#pragma once

#include <lockstep/course/lessons.h>
#include <lockstep/course/pitfall_source.h>

#include <filesystem>
#include <string>

namespace lockstep::course {

struct Exercise {
  LessonEntry lesson;
  Pitfall pitfall;
  std::filesystem::path file;  // what is mended: SLUG.cpp
};

// Where exercises are mended unless somebody says otherwise: exercises/ of the clone.
std::filesystem::path exercise_folder();

// Any pitfall, by its slug; or by a lesson as find_lesson() takes it: then the one that its lesson.md names in the
// section "Exercise". Throws UsageError.
Exercise find_exercise(const std::string& wanted, const std::filesystem::path& folder);

// The pitfall that a lesson's page names for its exercise: the first word in backticks of "## Exercise". Throws Error.
std::string exercise_of(const std::filesystem::path& lesson_page);

// Whether its lesson's page names it; the lesson counts as done when this one is mended.
bool is_lessons_own(const Pitfall& pitfall);

// What is handed out: who it is, what goes wrong, how to check it, and the function with the fault.
std::string handed_out(const Exercise& exercise);

// The lesson's source with the mended file in the place of the function. Compilers name its lines by the mended file.
std::string woven(const Exercise& exercise, const std::string& mended);

}  // namespace lockstep::course
