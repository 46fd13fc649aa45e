#include <lockstep/base/file.h>
#include <lockstep/course/matrix_command.h>
#include <lockstep/matrix/cases.h>
#include <lockstep/matrix/checkers.h>
#include <lockstep/matrix/report.h>

#include <iostream>

namespace lockstep::course {

void score_checker(const MatrixOptions& options) {
  const auto cases = matrix::find_cases(options.folders);
  const bool own = options.checker.empty();
  matrix::Matrix scored{
      own ? "lockstep diagnose" : options.checker, {}, matrix::families_of(cases)};
  for (const auto& one : cases)
    scored.runs.push_back(
        {one.truth, own ? matrix::ask_detectors(one)
                        : matrix::ask_program(one, options.checker,
                                              std::chrono::seconds(options.deadline_s))});
  std::cout << matrix::to_text(scored);
  if (!options.json.empty()) write_file(options.json, matrix::to_json(scored));
}

}  // namespace lockstep::course
