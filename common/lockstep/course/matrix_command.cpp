#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/matrix_command.h>
#include <lockstep/matrix/cases.h>
#include <lockstep/matrix/checkers.h>
#include <lockstep/matrix/report.h>

#include <iostream>
#include <memory>

namespace lockstep::course {

bool score_checker(const MatrixOptions& options) {
  auto cases = matrix::find_cases(options.folders);
  const bool own = options.checker.empty();
  if (!own && options.level != trace::kLevels - 1)
    throw UsageError("--level is for our own detectors; a checker is given whole traces");
  matrix::Matrix scored{
      own ? "lockstep diagnose" : options.checker, {}, matrix::families_of(cases), options.level};
  if (!options.beside.empty()) scored.beside = matrix::read_beside(options.beside);
  for (auto& one : cases) {
    // What takes more than is shown cannot be asked for.
    if (own && matrix::level_needed(one.truth.pitfall) > options.level)
      one.truth.applicable = false;
    const auto answer =
        own ? matrix::ask_detectors(one, options.level)
            : matrix::ask_program(one, options.checker, std::chrono::seconds(options.deadline_s));
    if (scored.runs.empty() && answer.not_started)
      throw Error("the checker could not be started: " + options.checker + ": " + answer.reason);
    scored.runs.push_back({one.truth, answer});
  }
  std::cout << matrix::to_text(scored);
  if (!options.json.empty()) write_file(options.json, matrix::to_json(scored));
  const auto totals = matrix::score(scored.runs, scored.families);
  if (totals.right + totals.wrong == 0)
    throw Error("nothing was scored: no case could be looked at, or show its pitfall");
  return totals.wrong == 0;
}

void add_matrix_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<MatrixOptions>();
  auto* command = app.add_subcommand(
      "matrix", "Score what names pitfalls on recorded runs whose truth is known");
  command
      ->add_option("folder", options->folders,
                   "Has cases in or below it, as ./lockstep run all --trace FOLDER makes them")
      ->required();
  command->add_option(
      "--checker", options->checker,
      "A command to score, given a folder of traces, in place of our own detectors");
  command->add_option("--deadline", options->deadline_s, "Seconds for each answer of it")
      ->check(CLI::Range(1, 3600))
      ->capture_default_str();
  command
      ->add_option("--level", options->level,
                   "What our detectors are shown: 0 the backend alone, 1 no samples and metrics, "
                   "2 everything")
      ->check(CLI::Range(0, 2))
      ->capture_default_str();
  command->add_option("--json", options->json, "A file for the whole matrix");
  command->add_option(
      "--beside", options->beside,
      "A table of PyTorch's own means, as reports/results/side_by_side.json, for columns beside");
  command->callback([options, command, &exit_code] {
    if (command->count("--checker") > 0 && options->checker.empty())
      throw UsageError("--checker names no command");
    exit_code = score_checker(*options) ? kOk : kFinding;
  });
}

}  // namespace lockstep::course
