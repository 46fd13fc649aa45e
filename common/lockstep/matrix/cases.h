// Recorded runs whose truth is known: folders of traces, each with a truth.json beside them.
#pragma once

#include <lockstep/matrix/score.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::matrix {

struct Case {
  Truth truth;
  std::filesystem::path folder;  // holds the traces, or attempt_0, attempt_1, ... of them
};

// Writes folder/truth.json (reports/schema/truth.schema.json).
void write_truth(const std::filesystem::path& folder, const Truth& truth);

// Every folder with a truth.json in or below these, by name. Throws Error where there is none and, with the file
// and what is wrong with it, for one that cannot be read; UsageError where two have one name.
std::vector<Case> find_cases(const std::vector<std::filesystem::path>& folders);

// The slugs of the cases, by family.
Families families_of(const std::vector<Case>& cases);

}  // namespace lockstep::matrix
