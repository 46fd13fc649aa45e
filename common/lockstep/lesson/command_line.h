// A lesson's command line.
#pragma once

#include <lockstep/lesson/lesson.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct LessonOptions {
  std::string variant = "all";
  std::optional<int> world_size;
  std::string backend = "gloo";
  std::uint64_t seed = 0;
  double timeout_s = 120;
  bool full = false;
  bool describe = false;
  std::filesystem::path json;
  std::filesystem::path trace;   // keep the runs' files here, a folder each
  std::filesystem::path folder;  // set for a rank by its launcher: this run's files
};

// Throws UsageError for what makes no sense: its text is for the user. Exits for --help through
// CommandLineDone.
LessonOptions parse_command_line(int argc, char** argv, const Lesson& lesson);

// Thrown by parse_command_line after it has printed --help.
struct CommandLineDone {};

// The arguments with which the launcher starts a rank of this variant.
std::vector<std::string> rank_arguments(const LessonOptions& options, const std::string& variant,
                                        int world_size, const std::filesystem::path& folder);

}  // namespace lockstep
