// Generic findings: of faults that no pitfall has a name for. docs/findings.md says what each means.
#pragma once

#include <lockstep/diagnose/finding.h>

#include <string>
#include <vector>

namespace lockstep::diagnose {

// The pitfalls that it may be after all: three, of which no run has been asked yet. None for a slug that is no generic
// finding's.
std::vector<Nearest> nearest_to(const std::string& generic);

bool is_generic(const std::string& slug);
// All of these, by name.
std::vector<std::string> generic_findings();

}  // namespace lockstep::diagnose
