// Colours, for terminals. They repeat what the text says; nothing is told by them alone.
#pragma once

#include <string>

namespace lockstep::course {

enum class Colour { bold = 1, red = 31, green = 32, cyan = 36 };

// With the colour where standard output is a terminal that has colours and NO_COLOR is unset or empty; else as it is.
std::string coloured(const std::string& text, Colour colour);

}  // namespace lockstep::course
