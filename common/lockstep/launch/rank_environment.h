// The environment and the program of a rank, prepared before the fork.
#pragma once

#include <lockstep/launch/launch.h>

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::launch {

// Where a rank's files lie in the launch folder.
struct RankFiles {
  std::filesystem::path out;
  std::filesystem::path err;
  std::filesystem::path error;
};
RankFiles files_of(const std::filesystem::path& folder, int rank);

// The launcher's own environment without what places it in another job, then options.environment,
// then what launch() promises. `folder` is absolute.
std::map<std::string, std::string> rank_environment(const LaunchOptions& options,
                                                    const std::filesystem::path& folder, int rank);

// The program's path: as it is where it names a folder, else looked up in the launcher's PATH.
// Throws Error when no folder of PATH holds it.
std::string find_program(const std::string& name);

}  // namespace lockstep::launch
