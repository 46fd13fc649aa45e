// What a variant's report must say, whatever it ran on.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "variants.h"

namespace lockstep::testing {

// The slugs that a variant of a report finds with this severity.
std::set<std::string> named(const nlohmann::json& variant, const std::string& severity);

// A right variant must complete, with every oracle at rest and no violation; a broken one must end as said, with its
// oracle's figure, and be named, blind, by exactly its own slug.
void expect_as_claimed(const LessonVariant& wanted, int world_size, const nlohmann::json& variant,
                       int exit_code);

// Of the variant, for a case's name.
std::string case_name(const LessonVariant& wanted);

}  // namespace lockstep::testing
