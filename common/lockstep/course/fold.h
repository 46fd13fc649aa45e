// A lesson's function with its switches, folded to plain code.
#pragma once

#include <string>

namespace lockstep::course {

// Takes fault("slug") for true and every other fault("...") for false; with an empty slug all are false.
// A switch is the condition of an if, alone or as
//   if (!fault("a"))    if (fault("a") || fault("b"))    if (fault("a") && other)
// or of a ?: that is a whole initializer or argument: `fault("a") ? x : y`.
// The branch that is not taken goes, and so do the braces of the other, unless it declares a Guard. A comment directly
// above an if without else is about its branch and goes with it. What the switches do not touch stays, to the byte.
// Throws Error for a switch that stands elsewhere.
std::string fold(const std::string& function, const std::string& slug);

}  // namespace lockstep::course
