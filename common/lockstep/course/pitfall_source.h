// The course's pitfalls, read from the lessons' own sources: where each `fault("slug")` stands, and the function
// around it as plain code of one variant. What `explain` prints and `exercise` hands out is never a second copy.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

struct Pitfall {
  std::string slug;            // "missing-set-epoch"
  std::string lesson;          // "05_set_epoch"
  std::filesystem::path file;  // the source that asks for it
  int line = 0;                // of fault("slug"), from 1
  // The outermost function around it, in bytes of the file: from the first line of its signature, or of the
  // comment directly above it, to behind the line of its closing brace.
  std::size_t begin = 0, end = 0;
};

// A function as it would stand in a program with the fault, and in one without any. Nothing of the course is left in
// it: no fault(...), no near miss. Begins at column 0, ends with a line break.
struct Code {
  std::string broken, right;
};

// All pitfalls of `source`/lessons, by lesson, then file, then line. Throws Error for a switch outside of any function.
std::vector<Pitfall> find_pitfalls(const std::filesystem::path& source);

// The one of that name. Throws UsageError that names the nearest ones, of `slugs` too.
Pitfall find_pitfall(const std::vector<Pitfall>& pitfalls, const std::string& slug,
                     std::vector<std::string> slugs = {});

// Reads the pitfall's file. Throws Error where the two variants do not differ.
Code code_of(const Pitfall& pitfall);

}  // namespace lockstep::course
