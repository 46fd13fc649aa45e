// A finding as JSON, the same in every report.
#pragma once

#include <lockstep/diagnose/diagnose.h>

#include <string>

namespace lockstep::report {

// The fields of diagnose::Finding, by name. "after" and "accounts_for" are there only where they say something.
std::string to_json(const diagnose::Finding& finding);

}  // namespace lockstep::report
