// The course's pages as they look in a terminal of 80 columns.
#pragma once

#include <lockstep/course/diff.h>
#include <lockstep/course/pitfall_source.h>

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::course {

void say_heading(const std::string& text);
// Markdown: prose is filled anew, lines that are indented by four are code and stay. A link to a file says where that
// lies; `folder` is the page's.
void say_section(const std::string& text, const std::filesystem::path& folder);
// One side of what differs: '-' the broken variant, '+' the right one; the other side's lines are left out.
void say_code(const Code& variants, char side);
// The same of lines whose signs are known.
void say_lines(const std::vector<DiffLine>& lines, char side);

}  // namespace lockstep::course
