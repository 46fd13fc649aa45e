// Conditions, some of whose parts are known.
#pragma once

#include <string>

namespace lockstep::course {

// What is known to be true or false stands as one of these in a text, so that it is told from what the author wrote.
inline constexpr char kKnownTrue = '\1', kKnownFalse = '\2';

// The same expression without what is known, as far as `?:`, `||`, `&&`, `!` and parentheses around all of it go:
// "a || \2" gives "a", "\1 ? a : b" gives "a", "!\2" gives "\1". Calls and inner parentheses stay as they are.
std::string simplified(const std::string& expression);

// Whether it is nothing but known.
bool is_known(const std::string& expression);

}  // namespace lockstep::course
