// Environment variables, read strictly.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// The variable's value; nothing when it is unset or empty.
std::optional<std::string> environment(const std::string& name);

// As an integer. Throws UsageError naming the variable and its value when it is set and not one.
std::optional<int> environment_int(const std::string& name);

}  // namespace lockstep
