// ./lockstep exercise: start, hint, check, reset.
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/exercise_check.h>
#include <lockstep/course/progress.h>
#include <lockstep/course/prose.h>
#include <lockstep/report/page.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace lockstep::course {
namespace {

std::string shown(const std::filesystem::path& file) {
  return std::filesystem::relative(file).string();
}

std::string sources_of(const Exercise& exercise) {
  return hash_of_sources(exercise.lesson.folder);
}

// Where the exercise is, if it is not where it would be looked for.
std::string folder_option(const Exercise& exercise) {
  const auto folder = exercise.file.parent_path();
  return folder == exercise_folder() ? "" : " --folder " + shown(folder);
}

void say_what_next(const Exercise& exercise) {
  const auto slug = exercise.pitfall.slug + folder_option(exercise);
  std::cout << "  mend it:     " << shown(exercise.file) << "\n"
            << "  a hint:      ./lockstep exercise hint " << slug << "\n"
            << "  is it right: ./lockstep exercise check " << slug << "\n";
}

void hand_out(const Exercise& exercise) {
  const auto page = report::read_page(source_folder(), exercise.lesson.name, exercise.pitfall.slug);
  write_file(exercise.file, handed_out(exercise));
  std::cout << "Exercise of " << exercise.lesson.name << "\n"
            << wrapped(page.title, "  ") << wrapped(page.section("Symptom"), "  ");
  say_what_next(exercise);
}

int start(const Exercise& exercise) {
  if (std::filesystem::exists(exercise.file))
    throw UsageError(shown(exercise.file) +
                     " is there already: go on with it, or begin anew with "
                     "./lockstep exercise reset " +
                     exercise.pitfall.slug);
  hand_out(exercise);
  return kOk;
}

void require_started(const Exercise& exercise, const std::string& what) {
  if (!std::filesystem::exists(exercise.file))
    throw UsageError("there is no " + shown(exercise.file) + " " + what +
                     ": ./lockstep exercise start " + exercise.pitfall.slug +
                     folder_option(exercise) + " makes it");
}

int hint(const Exercise& exercise) {
  require_started(exercise, "yet that a hint would help with");
  const auto& slug = exercise.pitfall.slug;
  const auto hints =
      report::hints_of(report::read_page(source_folder(), exercise.lesson.name, slug));
  if (hints.empty()) throw Error("the page of " + slug + " has no hints");
  const auto done =
      Progress().change(exercise.lesson.name, sources_of(exercise), [&](LessonProgress& progress) {
        auto& given = progress.hints[slug];
        given = std::min<int>(given + 1, static_cast<int>(hints.size()));
      });
  const auto level = static_cast<std::size_t>(done.hints.at(slug));
  for (std::size_t i = 0; i < level; ++i)
    std::cout << "Hint " << i + 1 << " of " << hints.size() << "\n" << wrapped(hints[i], "  ");
  if (level == hints.size())
    std::cout << "That is all of them. The whole story: ./lockstep explain " << slug << "\n";
  return kOk;
}

int reset(const Exercise& exercise) {
  if (!std::filesystem::exists(exercise.file)) {
    std::cout << "It was never started, so there is nothing to reset; it is started now.\n";
  } else if (read_file(exercise.file) != handed_out(exercise)) {
    std::filesystem::path kept;
    for (int number = 1; kept.empty() || std::filesystem::exists(kept); ++number)
      kept = exercise.file.string() + ".old-" + std::to_string(number);
    std::filesystem::rename(exercise.file, kept);
    std::cout << "What you had is kept as " << shown(kept) << ".\n";
  }
  hand_out(exercise);
  return kOk;
}

// What is wrong may be told in several lines, as that of several ranks: these stand below the first.
std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) result += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return result;
}

int check(const Exercise& exercise) {
  const auto& slug = exercise.pitfall.slug;
  require_started(exercise, "to check");
  const auto page = report::read_page(source_folder(), exercise.lesson.name, slug);
  const auto result = check(exercise, read_file(exercise.file), Countdown::standard_error());
  if (!result.compiler.empty()) {
    std::cout << "It cannot be built:\n" << result.compiler;
    return kFinding;
  }
  if (!result.wrong.empty()) {
    std::cout << "Not yet right.\n";
    for (const auto& each : result.wrong) std::cout << filled(indented(each), 2);
    std::cout << "A hint: ./lockstep exercise hint " << slug << folder_option(exercise) << "\n";
    return kFinding;
  }
  Progress().change(exercise.lesson.name, sources_of(exercise), [&](LessonProgress& done) {
    done.mended[slug] = today();
    if (is_lessons_own(exercise.pitfall)) done.passed = today();
  });
  const auto code = code_of(exercise.pitfall);
  std::cout << "The lesson's own way:\n";
  say_code(code, '-');
  say_code(code, '+');
  say_heading("Why");
  say_section(page.section("Why"), exercise.pitfall.file.parent_path() / "pitfalls");
  std::cout << "\nMore: ./lockstep explain " << slug
            << "\nRight: the oracles hold, the detectors find nothing, and no work was left out.\n";
  return kOk;
}

// What is wrong with an exercise, which is to fail as it is handed out and to pass with the lesson's own variant; "" where
// nothing is.
std::string exercise_verdict(const Exercise& exercise) {
  const auto shipped = check(exercise, handed_out(exercise), {});
  if (!shipped.compiler.empty()) return "cannot be built as it is handed out:\n" + shipped.compiler;
  if (shipped.wrong.empty()) return "passes as it is handed out\n";
  const auto solved = check(exercise, code_of(exercise.pitfall).right, {});
  if (!solved.compiler.empty()) return "its solution cannot be built:\n" + solved.compiler;
  if (!solved.wrong.empty())
    return "its solution does not pass:\n" + filled(indented(list(solved.wrong)), 2);
  return "";
}

int author_check(const std::vector<std::string>& wanted) {
  std::vector<std::string> names = wanted;
  if (wanted.empty())
    for (const auto& pitfall : find_pitfalls(source_folder())) names.push_back(pitfall.slug);
  std::vector<Exercise> exercises;
  std::vector<Countdown::Item> items;
  for (const auto& name : names) {
    exercises.push_back(find_exercise(name, exercise_folder()));
    items.push_back({exercises.back().lesson.name + " " + exercises.back().pitfall.slug});
  }
  Countdown countdown("exercise", items);
  bool all = true;
  for (const auto& exercise : exercises) {
    countdown.next();
    std::string verdict;
    try {
      verdict = exercise_verdict(exercise);
    } catch (const UnavailableError& error) {
      countdown.clear();
      std::cout << exercise.lesson.name << " " << exercise.pitfall.slug
                << ": not checked: " << error.what() << "\n"
                << std::flush;
      continue;
    }
    countdown.clear();
    std::cout << exercise.lesson.name << " " << exercise.pitfall.slug << ": "
              << (verdict.empty() ? "sound\n" : verdict) << std::flush;
    all = all && verdict.empty();
  }
  return all ? kOk : kFinding;
}

}  // namespace

void add_exercise_command(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("exercise", "Mend a broken variant, and have it checked");
  command->require_subcommand(1);
  const auto add = [&](const std::string& name, const std::string& what,
                       int (*act)(const Exercise&)) {
    auto wanted = std::make_shared<std::string>();
    auto folder = std::make_shared<std::filesystem::path>(exercise_folder());
    auto* each = command->add_subcommand(name, what);
    each->add_option(
            "exercise", *wanted,
            "A pitfall (missing-set-epoch), or a lesson (05, set_epoch) for the one that it names")
        ->required();
    each->add_option("--folder", *folder, "Where the file is that you mend")->capture_default_str();
    each->callback(
        [wanted, folder, act, &exit_code] { exit_code = act(find_exercise(*wanted, *folder)); });
  };
  add("start", "Write the broken function to exercises/PITFALL.cpp", start);
  add("hint", "The next of three hints", hint);
  add("check", "Build what you mended, run it on hidden seeds and world sizes, and judge it",
      check);
  add("reset", "Begin anew; what you had is kept beside", reset);
  auto wanted = std::make_shared<std::vector<std::string>>();
  auto* authors = command->add_subcommand(
      "author-check",
      "For authors: an exercise fails as handed out, and passes as the lesson has it");
  authors->group("");  // not in a learner's help
  authors->add_option("exercises", *wanted, "Pitfalls, or lessons; default: every pitfall");
  authors->callback([wanted, &exit_code] { exit_code = author_check(*wanted); });
}

}  // namespace lockstep::course
