// What an earlier report tells of how long its variants take.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::report {

// By variant; those that were skipped are left out. Empty where there is no report that can be read: it is an estimate.
std::map<std::string, double> seconds_by_variant(const std::filesystem::path& report);

}  // namespace lockstep::report
