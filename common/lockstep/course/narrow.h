// Code for a narrow terminal.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep::course {

// The same code in lines of at most `width` columns, where it has spaces to break at outside of literals; what has none
// moves to the left.
std::string narrowed(const std::string& code, std::size_t width);

}  // namespace lockstep::course
