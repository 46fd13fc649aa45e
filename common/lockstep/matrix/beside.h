// What PyTorch's own means said of the same pitfalls, as evaluation/pytorch_means measured it on Python twins of the
// lessons: the columns beside ours.
#pragma once

#include <lockstep/matrix/score.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::matrix {

struct Beside {
  struct Cells {
    Cell broken = Cell::skipped, correct = Cell::skipped;  // of the twin's two variants
  };
  std::string source;              // in words: which PyTorch, backend, ranks, and when
  std::vector<std::string> means;  // plain, info, detail ..., as the file has them
  std::map<std::string, std::map<std::string, Cells>> pitfalls;  // by slug, by means
};

// Reads reports/results/side_by_side.json (reports/schema/side_by_side.schema.json), but for the column of our
// own detectors. Throws Error, with the file and what is wrong with it, for one that cannot be read.
Beside read_beside(const std::filesystem::path& file);

// What is said of a run with a pitfall, best first.
enum class Said {
  named,     // its slug
  noticed,   // something, if not what
  misnamed,  // only other slugs
  silent,    // nothing, or nothing to look at
  error,     // the checker itself failed
};
std::string to_string(Said said);

struct Comparison {
  struct Total {
    Share named, noticed;  // noticed: or named
    Share false_alarms;    // of healthy runs: all of ours; of a means, the twins' correct variants
  };
  std::vector<std::string> columns;  // "ours", then the means
  // By pitfall, for every one that the file has, in the order of `columns`. Ours is the worst of its runs;
  // nothing: not asked.
  std::map<std::string, std::vector<std::optional<Said>>> rows;
  std::vector<Total> totals;  // by column, of the pitfalls that were asked of ours
};
Comparison compare(const std::vector<Scored>& runs, const Families& families, const Beside& beside);

}  // namespace lockstep::matrix
