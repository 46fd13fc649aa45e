// What somebody may have meant.
#pragma once

#include <string>
#include <vector>

namespace lockstep::course {

// At most three of the names: those that hold `wanted` or most of its words between hyphens, then those spelt most
// like it. An underscore is a hyphen, and one may be left out.
std::vector<std::string> nearest(const std::string& wanted, const std::vector<std::string>& names);

}  // namespace lockstep::course
