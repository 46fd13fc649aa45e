// Every variant of every lesson: what its program says of it (--describe), and of a broken one what its page says.
#pragma once

#include <lockstep/report/facts.h>

#include <string>
#include <vector>

namespace lockstep::testing {

struct LessonVariant {
  std::string lesson;
  std::string name;
  bool broken = false;
  int min_world_size = 1;  // as its program says
  int telling = 1;         // on fewer ranks none of its oracles can tell
  bool needs_gpu = false;  // skipped, with the reason, where there are too few
  report::Page page = {};  // of a broken variant

  // That the tests run it on, unless they are told otherwise.
  int world_size() const;
};

// Of these lessons, named with spaces between.
std::vector<LessonVariant> all_variants(const std::string& lessons);

}  // namespace lockstep::testing
