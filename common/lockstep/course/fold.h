// A lesson's function with its switches, folded to plain code.
#pragma once

#include <string>

namespace lockstep::course {

// Takes fault("slug") for true and every other fault("...") for false, and simplifies what rests on them: conditions,
// if and else, ?:, constants of type const bool, code behind a return, and variables that only other forms need
// (leftovers.h). Comments on near misses and the marks go, too. What the switches do not touch stays as it is, to the
// byte. With an empty slug all are false: the right form.
std::string fold(const std::string& function, const std::string& slug);

}  // namespace lockstep::course
