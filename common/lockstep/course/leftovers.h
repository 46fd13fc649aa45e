// What folding leaves behind: variables that are there for the sake of other forms.
#pragma once

#include <string>

namespace lockstep::course {

// Of a variable that `original` mentions more often than `text`, the folded function, does:
//   - one that is never mentioned again goes, where what it begins with does nothing but give a value
//   - one that is never changed gives way to what it begins with, where that is true, false, another name, or a number
//     that is used once. What a comment beside it says moves above the first line that used it
// True where there was one; a value of true or false stands in `text` as condition.h has it, to be folded further.
bool remove_leftover(std::string& text, const std::string& original);

// A line that folding has made shorter, together with the one before it where that ends in `=` or `(` and there is
// space for both.
std::string rejoined(const std::string& text, const std::string& original);

}  // namespace lockstep::course
