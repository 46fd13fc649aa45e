#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/exercise.h>
#include <lockstep/course/nearest.h>
#include <lockstep/report/page.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace lockstep::course {
namespace {

std::string comment(const std::string& text) {
  return wrapped(text, "// ");
}

// The broken variant without what its comments say of the fault: those on the lines that the right variant has not.
std::string without_the_answer(const Code& code) {
  std::multiset<std::string> right;
  std::istringstream right_lines(code.right), broken_lines(code.broken);
  std::string line, text;
  while (std::getline(right_lines, line)) right.insert(line);
  while (std::getline(broken_lines, line)) {
    if (const auto same = right.find(line); same != right.end()) {
      right.erase(same);
    } else if (const auto at = line.find("//"); at != std::string::npos) {
      line.erase(at);
      if (line.find_first_not_of(' ') == std::string::npos) continue;
      line.erase(line.find_last_not_of(' ') + 1);
    }
    text += line + "\n";
  }
  return text;
}

// Somebody who misspells may have meant a lesson or its pitfall.
[[noreturn]] void refuse_name(const std::vector<LessonEntry>& lessons, const std::string& wanted) {
  std::vector<std::string> names;
  for (const auto& lesson : lessons) {
    names.push_back(lesson.name);
    names.push_back(exercise_of(lesson.folder / "lesson.md"));
  }
  throw UsageError("there is no exercise \"" + wanted + "\"; the nearest: " +
                   list(nearest(wanted, names)) + ". ./lockstep list names all lessons");
}

}  // namespace

std::string exercise_of(const std::filesystem::path& lesson_page) {
  const auto text = report::section_of(read_file(lesson_page), "Exercise");
  const auto begin = text.find('`'), end = text.find('`', begin + 1);
  if (end == std::string::npos)
    throw Error(lesson_page.string() +
                " names no pitfall for an exercise, in backticks, under \"## Exercise\"");
  return text.substr(begin + 1, end - begin - 1);
}

bool is_lessons_own(const Pitfall& pitfall) {
  return exercise_of(source_folder() / "lessons" / pitfall.lesson / "lesson.md") == pitfall.slug;
}

std::filesystem::path exercise_folder() {
  return source_folder() / "exercises";
}

Exercise find_exercise(const std::string& wanted, const std::filesystem::path& folder) {
  const auto source = source_folder();
  const auto lessons = lessons_of_clone();
  const auto pitfalls = find_pitfalls(source);
  const bool is_slug = std::any_of(pitfalls.begin(), pitfalls.end(),
                                   [&](const Pitfall& each) { return each.slug == wanted; });
  const bool is_lesson =
      is_number(wanted) || std::any_of(lessons.begin(), lessons.end(),
                                       [&](const auto& each) { return is_named(each, wanted); });
  if (!is_slug && !is_lesson) refuse_name(lessons, wanted);
  const auto slug =
      is_slug ? wanted : exercise_of(find_lesson(lessons, wanted).folder / "lesson.md");
  const auto pitfall = find_pitfall(pitfalls, slug);
  return {find_lesson(lessons, pitfall.lesson), pitfall,
          std::filesystem::absolute(folder) / (pitfall.slug + ".cpp")};
}

std::string handed_out(const Exercise& exercise) {
  const auto& slug = exercise.pitfall.slug;
  const auto page = report::read_page(source_folder(), exercise.pitfall.lesson, slug);
  return comment("Exercise of lesson " + exercise.lesson.name + ": " + page.title) + "//\n" +
         comment("What is seen: " + page.section("Symptom")) + "//\n" +
         comment(
             "One thing in this function is wrong. Mend it; whatever else you need goes above it. "
             "The rest of the program is the lesson's, as it is (" +
             exercise.pitfall.file.lexically_relative(source_folder()).string() +
             "). Calls of context.intent() and the like only say what is meant.") +
         "//   ./lockstep exercise check " + slug + "\n//   ./lockstep exercise hint " + slug +
         "\n\n" + without_the_answer(code_of(exercise.pitfall));
}

std::string woven(const Exercise& exercise, const std::string& mended) {
  const auto source = read_file(exercise.pitfall.file);
  const auto before = source.substr(0, exercise.pitfall.begin);
  const auto after = source.substr(exercise.pitfall.end);
  const auto next_line =
      1 + std::count(source.begin(),
                     source.begin() + static_cast<std::ptrdiff_t>(exercise.pitfall.end), '\n');
  const auto line_of = [](std::ptrdiff_t line, const std::filesystem::path& file) {
    return "#line " + std::to_string(line) + " \"" + file.string() + "\"\n";
  };
  return line_of(1, exercise.pitfall.file) + before + line_of(1, exercise.file) + mended + "\n" +
         line_of(next_line, exercise.pitfall.file) + after;
}

}  // namespace lockstep::course
