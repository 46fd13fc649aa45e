// ./lockstep list: the lessons, what is done of them, and what comes next.
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/exercise.h>
#include <lockstep/course/lessons.h>
#include <lockstep/course/progress.h>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace lockstep::course {
namespace {

std::int64_t words_in(const std::filesystem::path& file) {
  std::istringstream text(read_file(file));
  std::int64_t count = 0;
  for (std::string word; text >> word;) ++count;
  return count;
}

// Of somebody who reads the lesson's page, its code and the pages of its pitfalls once, and mends the exercise.
std::int64_t minutes_of(const std::filesystem::path& lesson) {
  constexpr std::int64_t kWordsAMinute = 150, kExercise = 10;
  std::int64_t words = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(lesson))
    if (entry.path().extension() == ".md" || entry.path().extension() == ".cpp")
      words += words_in(entry.path());
  return (words / kWordsAMinute + kExercise + 4) / 5 * 5;
}

std::string state_of(const LessonProgress& done) {
  if (!done.passed.empty()) return "done";
  if (done.changed) return "changed since";
  return done.ran.empty() ? "" : "run";
}

// Cases of ./lockstep detective; the game keeps a file of its own beside the progress (lessons/detective/scores.py).
std::size_t solved_cases() {
  const auto progress = progress_file();
  const auto file = progress.parent_path() / "detective.json";
  std::error_code none;
  if (progress.empty() || !std::filesystem::exists(file, none)) return 0;
  try {
    return nlohmann::json::parse(read_file(file)).at("cases").size();
  } catch (const std::exception&) {
    return 0;  // the game itself says what is wrong with it
  }
}

int list_lessons() {
  const Progress progress;
  const LessonEntry* next = nullptr;
  bool next_has_run = false;
  std::size_t count = 0, done_count = 0, mended = 0;
  const auto lessons = lessons_of_clone();
  for (const auto& lesson : lessons) {
    const auto done = progress.of(lesson.name, hash_of_sources(lesson.folder));
    ++count;
    done_count += done.passed.empty() ? 0 : 1;
    mended += done.mended.size() - done.mended.count(exercise_of(lesson.folder / "lesson.md"));
    if (done.passed.empty() && next == nullptr) {
      next = &lesson;
      next_has_run = !done.ran.empty() && !done.changed;
    }
    std::cout << std::left << std::setw(34) << lesson.name << std::setw(15) << state_of(done)
              << std::right << std::setw(4) << minutes_of(lesson.folder) << " min"
              << (next == &lesson ? "   next" : "") << "\n"
              << wrapped(lesson.title, "    ");
  }
  std::cout << "\n" << done_count << " of " << count << " exercises done";
  if (mended > 0) std::cout << ", and " << mended << " other pitfalls mended";
  if (const auto solved = solved_cases(); solved > 0)
    std::cout << ",\nand " << solved << " case" << (solved == 1 ? "" : "s")
              << " of ./lockstep detective solved";
  std::cout << ".\nMinutes: to read a lesson and mend its exercise.";
  if (next != nullptr) {
    const auto number = next->name.substr(0, 2);
    std::cout << "\nNext: " << (next_has_run ? "" : "./lockstep run " + number + ", then ")
              << "./lockstep exercise start " << number;
  }
  std::cout << "\n";
  return kOk;
}

}  // namespace

void add_list_command(CLI::App& app, int& exit_code) {
  app.add_subcommand("list", "The lessons, what each one teaches, and what you have done")
      ->callback([&exit_code] { exit_code = list_lessons(); });
}

}  // namespace lockstep::course
