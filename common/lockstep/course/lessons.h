// The lessons that are built, and how to run one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

struct LessonEntry {
  std::string name;               // "05_set_epoch"
  std::string title;              // the first heading of its lesson.md
  std::filesystem::path folder;   // its sources and pages
  std::filesystem::path program;  // where it is, or would be, built
};

// Every folder NN_name of `source`/lessons, in order.
std::vector<LessonEntry> find_lessons(const std::filesystem::path& source,
                                      const std::filesystem::path& build);

// The sources that this program was built from.
std::filesystem::path source_folder();
// The lessons of those, built beside this program. Throws Error where it is an installed copy, which has none.
std::vector<LessonEntry> lessons_of_clone();

// "05_set_epoch", "05", "5" or "set_epoch".
bool is_named(const LessonEntry& lesson, const std::string& wanted);

bool is_number(const std::string& wanted);

// The one that is named so. Throws UsageError that names the nearest: for a number, the lessons next to it.
LessonEntry find_lesson(const std::vector<LessonEntry>& lessons, const std::string& wanted);

// What the lesson's program, which must be built, says of itself (--describe). Throws Error.
struct LessonVariant {
  std::string name, kind, part;  // "missing-set-epoch", "broken", "epochs"
  int min_world_size = 1;        // cannot show on fewer
};
struct Description {
  int default_world_size = 1;
  std::vector<LessonVariant> variants;
};
Description describe(const LessonEntry& lesson);
// The correct variant of the part that has this broken one; "" where no variant is broken under this name.
std::string correct_variant_of(const Description& description, const std::string& broken);

// Runs a program with this terminal, waits, and returns its exit code (128 + signal where one ended
// it). SIGINT and SIGTERM sent to this process are passed on to it.
int run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments);
// The same with no terminal: what it says goes to the file `log`.
int run_quietly(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                const std::filesystem::path& log);

}  // namespace lockstep::course
