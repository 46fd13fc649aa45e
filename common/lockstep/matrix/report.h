// What a checker was worth: a line for each case, and the totals. For people, and as JSON
// (reports/schema/matrix.schema.json).
#pragma once

#include <lockstep/matrix/beside.h>
#include <lockstep/matrix/score.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep::matrix {

struct Matrix {
  std::string checker;
  std::vector<Scored> runs;
  Families families;
  int level = 2;  // how much of the runs it was shown (trace/levels.h)
  std::optional<Beside> beside = {};
};

std::string to_text(const Matrix& matrix);
std::string to_json(const Matrix& matrix);

}  // namespace lockstep::matrix
