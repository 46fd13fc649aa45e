// What differs between the two variants of a pitfall, as a patch or as something to read.
#pragma once

#include <lockstep/course/pitfall_source.h>

#include <string>

namespace lockstep::course {

// A unified diff of the whole function, from a/SLUG.cpp, the broken variant, to b/SLUG.cpp, the right one: `patch -p1`
// makes the right variant of a file that holds the broken one.
std::string patch_of(const std::string& slug, const Code& code);

// The same for a terminal, in colour where it has any: a line longer than 80 columns goes on in the next one, which has
// a `>` in the margin instead of a sign. No patch then.
std::string readable_patch_of(const std::string& slug, const Code& code);

}  // namespace lockstep::course
