// The code of a pitfall in Python, as its page shows it: made from a program that a test runs (tests/docs/page_code.py).
#pragma once

#include <lockstep/course/diff.h>
#include <lockstep/report/page.h>

#include <filesystem>
#include <optional>
#include <vector>

namespace lockstep::course {

struct PythonCode {
  std::filesystem::path file;   // relative to the page's folder
  std::vector<DiffLine> lines;  // what differs, and some lines around it
};

// Nothing where the pitfall has no program in Python.
std::optional<PythonCode> python_code_of(const report::Page& page);

}  // namespace lockstep::course
