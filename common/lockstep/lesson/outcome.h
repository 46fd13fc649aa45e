// Outcomes on disk: how ranks hand what they saw to the process that judges it.
#pragma once

#include <lockstep/lesson/rank_context.h>

#include <filesystem>

namespace lockstep {

void write_outcome(const std::filesystem::path& file, const Outcome& outcome);
// Throws Error naming the file when it is not an outcome. NaN survives the way (as JSON's null).
Outcome read_outcome(const std::filesystem::path& file);

}  // namespace lockstep
