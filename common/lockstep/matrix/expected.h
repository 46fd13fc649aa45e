// What a checker should say of the lessons' broken forms beyond their names: which ranks are at fault, and the
// first step at which it can be seen. Read off the lessons' code, by a person, into lessons/truths.json.
#pragma once

#include <lockstep/matrix/score.h>

#include <filesystem>
#include <string>

namespace lockstep::matrix {

// Fills in `truth.ranks` and `truth.step` where the file says them for this lesson, its pitfall and this number of
// ranks. A file that is not there says nothing; throws Error for one that cannot be read.
void fill_in_expected(Truth& truth, const std::filesystem::path& file, const std::string& lesson,
                      int world_size);

}  // namespace lockstep::matrix
