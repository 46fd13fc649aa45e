// What differs between two texts, line by line.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::course {

struct DiffLine {
  char sign;  // ' ' in both, '-' only before, '+' only after
  std::string text;
};

// Lines that differ, with what stands around them. Lines are counted from 1.
struct Hunk {
  std::size_t before = 1, after = 1;  // the first line's number in each text
  std::vector<DiffLine> lines;
};

// With at most `context` equal lines around each difference; empty where the texts are equal.
std::vector<Hunk> hunks_between(const std::string& before, const std::string& after,
                                std::size_t context = 3);

// "@@ -3,5 +3,4 @@"
std::string head_of(const Hunk& hunk);

}  // namespace lockstep::course
