// The program behind ./lockstep: list, run, diagnose.
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/flight_diagnosis.h>
#include <lockstep/course/lessons.h>
#include <lockstep/course/matrix_command.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/text.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/json.h>
#include <lockstep/trace/reader.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::course {
namespace {

enum ExitCode { kOk = 0, kFinding = 1, kUsage = 2, kCouldNotRun = 3, kSkipped = 77 };

std::filesystem::path build_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// The lessons lie in the clone and in the build folder that this program is in; an installed copy has neither.
std::vector<LessonEntry> lessons_of_clone(const std::filesystem::path& source) {
  const auto build = build_folder();
  if (!std::filesystem::exists(source / "lessons") ||
      !std::filesystem::exists(build / "CMakeCache.txt"))
    throw Error(
        "the lessons are not installed: list and run need a clone of Lockstep, where they are "
        "./lockstep list and ./lockstep run");
  return find_lessons(source, build);
}

int list(const std::vector<LessonEntry>& lessons) {
  for (const auto& lesson : lessons)
    std::cout << std::left << std::setw(34) << lesson.name << lesson.title << "\n";
  return kOk;
}

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

nlohmann::json finding_json(const diagnose::Finding& finding) {
  return {{"pitfall", finding.pitfall},   {"severity", diagnose::to_string(finding.severity)},
          {"ranks", finding.ranks},       {"step", finding.step},
          {"sequence", finding.sequence}, {"evidence", finding.evidence}};
}

// Most detectors need every rank; that they found nothing without one is no comfort.
std::set<int> warn_of_missing_ranks(const std::filesystem::path& folder,
                                    const trace::Trace& trace) {
  std::set<int> missing;
  const bool process = trace.ranks.front().participant.kind == "process";
  for (int rank = 0; rank < trace.world_size; ++rank) missing.insert(rank);
  for (const auto& rank : trace.ranks) missing.erase(rank.participant.rank);
  if (missing.empty()) return missing;
  std::cerr << "warning: " << folder.string() << " has the traces of " << trace.ranks.size()
            << " of " << trace.world_size << (process ? " ranks" : " devices") << "; missing:";
  for (const int rank : missing) std::cerr << " " << rank;
  std::cerr << ". Little can be told without them.\n";
  return missing;
}

// Folders that are named one by one are read as one job's: two jobs' would hide each other's faults.
void check_attempts(const std::vector<std::filesystem::path>& folders,
                    const std::vector<trace::Trace>& first_attempts) {
  std::int64_t before = -1;
  for (std::size_t i = 0; folders.size() > 1 && i < folders.size(); ++i) {
    std::int64_t number = -1;
    for (const auto& rank : first_attempts[i].ranks)
      for (const auto& at : rank.all<trace::Attempt>()) number = at.event->restart_count;
    if (number <= before)
      throw UsageError(
          folders[i].string() +
          (number < 0 ? " records no number of an attempt"
                      : " is of attempt " + std::to_string(number)) +
          ": several folders are read as the attempts of one job, in order. Diagnose other "
          "jobs one at a time; attempts without numbers go into one folder, as attempt_0, "
          "attempt_1 ...");
    before = number;
  }
}

// A snapshot of a job that still runs shows waits that may just not be over.
void warn_of_running_ranks(const std::filesystem::path& folder, const trace::Trace& trace) {
  std::vector<int> running;
  for (const auto& rank : trace.ranks) {
    const auto maps = std::filesystem::path("/proc") / std::to_string(rank.pid) / "maps";
    if (rank.closed || !std::filesystem::exists(maps)) continue;
    const auto file = trace::trace_file(std::filesystem::canonical(folder), rank.participant.rank);
    try {
      if (read_file(maps).find(file.string()) == std::string::npos) continue;
    } catch (const Error&) {  // it has just ended, or is another user's
      continue;
    }
    running.push_back(rank.participant.rank);
  }
  if (running.empty()) return;
  std::cerr
      << "note: " << ranks_text(running) << (running.size() > 1 ? " still run" : " still runs")
      << ". What is found is of this moment: a wait may just not be over. Look again later.\n";
}

// What is known of a job in which nothing was found, and that failed all the same.
void note_failures(const trace::Trace& trace) {
  for (const auto& end : trace.ends)
    if (end.how != "completed" && end.how != "stopped")
      std::cerr << "note: by its launcher's word rank " << end.rank
                << " ended otherwise: " << end.how << ", exit code " << end.exit_code
                << ". Nothing that was recorded explains it.\n";
  for (const auto& rank : trace.ranks)
    for (const auto& at : rank.all<trace::StoreCall>())
      if (at.event->error != 0)
        std::cerr << "note: rank " << rank.participant.rank
                  << " did not come through to the store (" << at.event->action << " "
                  << at.event->address << ", port " << at.event->port
                  << "): " << std::strerror(static_cast<int>(at.event->error)) << "\n";
}

int diagnose_folders(const std::vector<std::filesystem::path>& folders, bool as_json,
                     bool export_trace) {
  std::vector<trace::Trace> attempts, first_attempts;
  std::set<std::filesystem::path> seen;
  std::set<int> missing;
  for (const auto& job : folders) {
    for (const auto& folder : trace::attempt_folders(job)) {
      if (!seen.insert(std::filesystem::weakly_canonical(folder)).second)
        throw UsageError(folder.string() + " is named twice; name each attempt's folder once");
      attempts.push_back(trace::read(folder));
      missing.merge(warn_of_missing_ranks(folder, attempts.back()));
      warn_of_running_ranks(folder, attempts.back());
    }
    first_attempts.push_back(trace::read(trace::attempt_folders(job).front()));
  }
  check_attempts(folders, first_attempts);
  const auto trace = trace::concatenate(std::move(attempts));
  if (export_trace) {
    std::cout << trace::to_json(trace) << "\n";
    return kOk;
  }
  const auto diagnosis = diagnose::diagnose(trace);
  if (diagnosis.findings.empty()) note_failures(trace);
  if (as_json) {
    nlohmann::json findings = nlohmann::json::array(), rows = nlohmann::json::array();
    for (const auto& finding : diagnosis.findings) findings.push_back(finding_json(finding));
    for (const auto& row : diagnosis.rows)
      rows.push_back({{"slug", row.slug},
                      {"state", diagnose::to_string(row.verdict.state)},
                      {"reason", row.verdict.reason}});
    std::cout << nlohmann::json{{"findings", findings},
                                {"missing_ranks", missing},
                                {"detectors", rows}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << diagnose::to_text(diagnosis);
  }
  if (!diagnosis.findings.empty()) return kFinding;
  return missing.empty() ? kOk : kCouldNotRun;  // nothing found of a part is no good news
}

int main_of(int argc, char** argv) {
  const std::filesystem::path source = LOCKSTEP_SOURCE_DIR;
  CLI::App app("Lockstep: data-parallel training, its pitfalls, and what names them", "lockstep");
  app.require_subcommand(1);
  app.footer(
      "Also, in a clone: ./lockstep test, bench, doctor; see ./lockstep --help.\n"
      "Exit codes: 0 as expected, 1 a verdict is wrong or a finding, 2 usage, 3 could not run, 77 "
      "skipped.");
  app.add_subcommand("list", "The lessons and what each one teaches");
  std::string wanted = "all";
  std::filesystem::path reports = source / "reports" / "out";
  auto* run_command =
      app.add_subcommand("run", "Run a lesson, or all of them; further options go to the lesson");
  run_command->set_help_flag("");  // `run LESSON --help` is the lesson's
  run_command->add_option("lesson", wanted, "05_set_epoch, 05, set_epoch, or all")
      ->capture_default_str();
  run_command->add_option("--reports", reports, "Folder for the JSON reports")
      ->capture_default_str();
  run_command->allow_extras();
  std::vector<std::filesystem::path> folders;
  bool as_json = false, export_trace = false;
  auto* diagnose_command =
      app.add_subcommand("diagnose",
                         "Name the pitfall from a folder of traces, or from those of a job's "
                         "attempts, in order");
  diagnose_command
      ->add_option("folder", folders,
                   "Holds rank_*.trace, or dumps of PyTorch's flight recorder (nccl_trace_rank_*)")
      ->required();
  diagnose_command->add_flag("--json", as_json, "Findings and every detector's state as JSON");
  diagnose_command->add_flag("--export", export_trace, "The trace itself as JSON");
  std::optional<std::string> prefix;
  diagnose_command->add_option("--prefix", prefix, "What the dumps' names have before the rank");
  MatrixOptions scored;
  auto* matrix_command = app.add_subcommand(
      "matrix", "Score what names pitfalls on recorded runs whose truth is known");
  matrix_command
      ->add_option("folder", scored.folders,
                   "Has cases in or below it, as ./lockstep run all --trace FOLDER makes them")
      ->required();
  matrix_command->add_option(
      "--checker", scored.checker,
      "A command to score, given a folder of traces, in place of our own detectors");
  matrix_command->add_option("--deadline", scored.deadline_s, "Seconds for each answer of it")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  matrix_command
      ->add_option("--level", scored.level,
                   "What our detectors are shown: 0 the backend alone, 1 no samples and metrics, "
                   "2 everything")
      ->check(CLI::Range(0, 2))
      ->capture_default_str();
  matrix_command->add_option("--json", scored.json, "A file for the whole matrix");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw UsageError(std::string(error.what()) + "; see --help");
  }
  if (*matrix_command) {
    if (matrix_command->count("--checker") > 0 && scored.checker.empty())
      throw UsageError("--checker names no command");
    score_checker(scored);
    return kOk;
  }
  if (*diagnose_command) {
    if (const auto code = diagnose_flight_dumps(folders, {prefix, as_json})) return *code;
    return diagnose_folders(folders, as_json, export_trace);
  }
  const auto lessons = lessons_of_clone(source);
  if (*run_command) {
    const auto rest = run_command->remaining();
    const bool help = std::find(rest.begin(), rest.end(), "--help") != rest.end() ||
                      std::find(rest.begin(), rest.end(), "-h") != rest.end();
    if (help && wanted == "all") {
      std::cout << run_command->help("", CLI::AppFormatMode::Sub)
                << "./lockstep run LESSON --help shows a lesson's options and forms.\n";
      return kOk;
    }
    if (help) return run_program(find_lesson(lessons, wanted).program, {"--help"});
    return run(lessons, wanted, reports, rest);
  }
  return list(lessons);
}

}  // namespace
}  // namespace lockstep::course

int main(int argc, char** argv) {
  using namespace lockstep;
  try {
    return course::main_of(argc, argv);
  } catch (const UsageError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return course::kUsage;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return course::kCouldNotRun;
  }
}
