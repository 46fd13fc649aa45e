// Lines of code, made fit to be read.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::course {

// Without `// PITFALL` marks. What clang-format aligned with one moves to where it would stand without.
std::string without_marks(const std::string& code);

// Where the comment directly above the line at `begin` begins, or `begin`. A comment that begins with "Nothing" is about
// no line: it stands for a statement that is missing.
std::size_t with_comment_above(const std::string& code, std::size_t begin);

// Without comment blocks that speak of a near miss.
std::string without_near_misses(const std::string& code);

// Without the blank lines that statements leave behind: one of two, those next to a brace.
std::string without_gaps(const std::string& code);

// The same code in lines of at most `width` columns, where it has spaces to break at outside of literals; what has none
// moves to the left.
std::string narrowed(const std::string& code, std::size_t width);

}  // namespace lockstep::course
