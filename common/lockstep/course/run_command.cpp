// ./lockstep run: lessons, each in all its forms.
#include <lockstep/base/error.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/exit_code.h>
#include <lockstep/course/lessons.h>

#include <algorithm>
#include <iostream>
#include <memory>

namespace lockstep::course {
namespace {

// The value of an option among those for the lesson, "--variant X" or "--variant=X".
std::string value_of(const std::vector<std::string>& arguments, const std::string& option) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == option && i + 1 < arguments.size()) return arguments[i + 1];
    if (arguments[i].rfind(option + "=", 0) == 0) return arguments[i].substr(option.size() + 1);
  }
  return "";
}

// Of all lessons, those that have a form of this name.
std::vector<LessonEntry> with_form(const std::vector<LessonEntry>& lessons,
                                   const std::string& form) {
  std::vector<LessonEntry> having;
  for (const auto& lesson : lessons)
    if (has_form(lesson, form)) having.push_back(lesson);
  if (having.empty())
    throw UsageError("no lesson has a form \"" + form +
                     "\"; ./lockstep run LESSON --help lists a lesson's forms");
  return having;
}

// Every lesson's report goes to `reports`, unless the caller named a file for a single one.
int run(const std::vector<LessonEntry>& lessons, const std::string& wanted,
        const std::filesystem::path& reports, const std::vector<std::string>& rest) {
  std::vector<LessonEntry> chosen = lessons;
  if (wanted != "all") {
    chosen = {find_lesson(lessons, wanted)};
  } else if (const auto form = value_of(rest, "--variant");
             !form.empty() && form != "all" && form != "correct") {
    chosen = with_form(lessons, form);
  }
  const bool own_file = !value_of(rest, "--json").empty();
  if (own_file && chosen.size() > 1)
    throw UsageError("--json names one file, and `run all` writes one a lesson");
  if (!own_file) std::filesystem::create_directories(reports);
  int worst = kOk, skipped = 0;
  for (const auto& lesson : chosen) {
    auto arguments = rest;
    if (!own_file) arguments.insert(arguments.end(), {"--json", reports / (lesson.name + ".json")});
    const int code = run_program(lesson.program, arguments);
    if (code == kUsage || code > 128) return code;  // the same for the rest; or interrupted
    skipped += code == kSkipped;
    if (code != kSkipped) worst = std::max(worst, code);
  }
  return skipped == static_cast<int>(chosen.size()) ? static_cast<int>(kSkipped) : worst;
}

struct Options {
  std::string lesson = "all";
  std::filesystem::path reports = source_folder() / "reports" / "out";
};

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("run", "Run a lesson, or all of them; further options go to the lesson");
  command->set_help_flag("");  // `run LESSON --help` is the lesson's
  command->add_option("lesson", options->lesson, "05_set_epoch, 05, set_epoch, or all")
      ->capture_default_str();
  command->add_option("--reports", options->reports, "Folder for the JSON reports")
      ->capture_default_str();
  command->allow_extras();
  command->callback([options, command, &exit_code] {
    const auto rest = command->remaining();
    const bool help = std::find(rest.begin(), rest.end(), "--help") != rest.end() ||
                      std::find(rest.begin(), rest.end(), "-h") != rest.end();
    if (help && options->lesson == "all") {
      std::cout << command->help("", CLI::AppFormatMode::Sub)
                << "./lockstep run LESSON --help shows a lesson's options and forms.\n";
      return;
    }
    const auto lessons = lessons_of_clone();
    exit_code = help ? run_program(find_lesson(lessons, options->lesson).program, {"--help"})
                     : run(lessons, options->lesson, options->reports, rest);
  });
}

}  // namespace lockstep::course
