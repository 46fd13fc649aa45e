// A diagnosis, and a ledger, for people.
#pragma once

#include <lockstep/diagnose/diagnose.h>

#include <span>
#include <string>

namespace lockstep::diagnose {

// One or more lines of the ledger, of a run or of two.
std::string to_text(const Line& line);
// A few lines for each finding.
std::string to_text(std::span<const Finding> findings, const std::string& folder = "");
// The ledger, a few lines per finding, and what was not recorded; at most 80 columns but for lines of the program, whose
// file is named from `folder` on where it is below; ends with a newline.
std::string to_text(const Diagnosis& diagnosis, const std::string& folder = "");

}  // namespace lockstep::diagnose
