// The lessons that are built, and how to run one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

struct LessonEntry {
  std::string name;               // "05_set_epoch"
  std::string title;              // the first heading of its lesson.md
  std::filesystem::path program;  // where it is, or would be, built
};

// Every folder NN_name of `source`/lessons, in order.
std::vector<LessonEntry> find_lessons(const std::filesystem::path& source,
                                      const std::filesystem::path& build);

// The sources that this program was built from.
std::filesystem::path source_folder();
// The lessons of those, built beside this program. Throws Error where it is an installed copy, which has none.
std::vector<LessonEntry> lessons_of_clone();

// The one that `wanted` names: "05_set_epoch", "05", "5" or "set_epoch". Throws UsageError listing
// all.
LessonEntry find_lesson(const std::vector<LessonEntry>& lessons, const std::string& wanted);

// Whether the lesson's program, which must be built, describes a form of this name.
bool has_form(const LessonEntry& lesson, const std::string& form);

// Runs a program with this terminal, waits, and returns its exit code (128 + signal where one ended
// it). SIGINT and SIGTERM sent to this process are passed on to it.
int run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments);

}  // namespace lockstep::course
