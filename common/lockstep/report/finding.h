// A finding as JSON, the same in every report, and in Python.
#pragma once

#include <lockstep/diagnose/finding.h>

#include <string>

namespace lockstep::report {

// "after", "accounts_for", "nearest" and "places" are there only where they say something.
std::string to_json(const diagnose::Finding& finding);

}  // namespace lockstep::report
