// Which pitfalls are nearest to a generic finding.
#pragma once

#include <lockstep/diagnose/finding.h>

#include <string>
#include <vector>

namespace lockstep::diagnose {

// Three, of which no run has been asked yet. None for a slug that is no generic finding's.
std::vector<Nearest> nearest_to(const std::string& generic);

// All of these, by name.
std::vector<std::string> generic_findings();

}  // namespace lockstep::diagnose
