#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/course/matrix_command.h>
#include <lockstep/matrix/cases.h>
#include <lockstep/matrix/checkers.h>
#include <lockstep/matrix/report.h>

#include <iostream>

namespace lockstep::course {

void score_checker(const MatrixOptions& options) {
  auto cases = matrix::find_cases(options.folders);
  const bool own = options.checker.empty();
  if (!own && options.level != trace::kLevels - 1)
    throw UsageError("--level is for our own detectors; a checker is given whole traces");
  matrix::Matrix scored{
      own ? "lockstep diagnose" : options.checker, {}, matrix::families_of(cases), options.level};
  for (auto& one : cases) {
    // What takes more than is shown cannot be asked for.
    if (own && matrix::level_needed(one.truth.pitfall) > options.level)
      one.truth.applicable = false;
    scored.runs.push_back(
        {one.truth, own ? matrix::ask_detectors(one, options.level)
                        : matrix::ask_program(one, options.checker,
                                              std::chrono::seconds(options.deadline_s))});
  }
  std::cout << matrix::to_text(scored);
  if (!options.json.empty()) write_file(options.json, matrix::to_json(scored));
}

}  // namespace lockstep::course
