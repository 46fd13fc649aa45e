// A lesson's command line.
#pragma once

#include <lockstep/lesson/lesson.h>

#include <chrono>
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
  bool share_gpu = false;  // of nccl: several ranks may have one GPU
  bool check = false;      // record::check around the backend
  std::uint64_t seed = 0;
  double timeout_s = 120;
  bool full = false;
  bool describe = false;
  std::filesystem::path json;
  std::filesystem::path earlier;  // a report; empty: the one that json names, from before this run
  std::filesystem::path trace;    // keep the runs' files here, a folder each
  std::filesystem::path folder;   // set for a rank by its launcher: this run's files
};

// Of the ranks' collectives: short enough for a rank to tell of it before its variant's time is over.
std::chrono::milliseconds operation_timeout(const LessonOptions& options);

// Throws UsageError for what makes no sense: its text is for the user. Exits for --help through
// CommandLineDone.
LessonOptions parse_command_line(int argc, char** argv, const Lesson& lesson);

// Thrown by parse_command_line after it has printed --help.
struct CommandLineDone {};

// The arguments with which the launcher starts a rank of this variant.
std::vector<std::string> rank_arguments(const LessonOptions& options, const std::string& variant,
                                        int world_size, const std::filesystem::path& folder);

}  // namespace lockstep
