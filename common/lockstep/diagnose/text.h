// A diagnosis for people.
#pragma once

#include <lockstep/diagnose/diagnose.h>

#include <string>

namespace lockstep::diagnose {

// A few lines per finding, then one on what was looked for; at most 80 columns, ends with a
// newline.
std::string to_text(const Diagnosis& diagnosis);

}  // namespace lockstep::diagnose
