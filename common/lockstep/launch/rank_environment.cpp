#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/processors.h>
#include <lockstep/launch/rank_environment.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace lockstep::launch {
namespace {

// What places a process in a job. A launcher that runs inside another job, or under a shell that
// exported RANK, must not hand these on.
constexpr std::array kPlacing{"RANK",
                              "WORLD_SIZE",
                              "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE",
                              "GROUP_RANK",
                              "ROLE_RANK",
                              "ROLE_WORLD_SIZE",
                              "ROLE_NAME",
                              "GROUP_WORLD_SIZE",
                              "MASTER_ADDR",
                              "MASTER_PORT",
                              "SLURM_PROCID",
                              "SLURM_NTASKS",
                              "SLURM_LOCALID",
                              "SLURM_NTASKS_PER_NODE",
                              "SLURM_NODEID",
                              "LOCKSTEP_STORE",
                              "LOCKSTEP_ERROR_FILE"};
constexpr std::array kPlacingPrefixes{"TORCHELASTIC_", "OMPI_COMM_WORLD_", "SLURM_STEP_"};

bool places(std::string_view name) {
  return std::find(kPlacing.begin(), kPlacing.end(), name) != kPlacing.end() ||
         std::any_of(kPlacingPrefixes.begin(), kPlacingPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || places(text.substr(0, equals))) continue;
    result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

}  // namespace

RankFiles files_of(const std::filesystem::path& folder, int rank) {
  const std::string stem = "rank_" + std::to_string(rank);
  return {folder / (stem + ".out"), folder / (stem + ".err"), folder / (stem + ".error.json")};
}

std::map<std::string, std::string> rank_environment(const LaunchOptions& options,
                                                    const std::filesystem::path& folder, int rank) {
  auto result = own_environment();
  for (const auto& [name, value] : options.environment) result[name] = value;
  for (const char* name : {"RANK", "LOCAL_RANK"}) result[name] = std::to_string(rank);
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"})
    result[name] = std::to_string(options.world_size);
  result["LOCKSTEP_STORE"] = "file://" + (folder / "store").string();
  result["LOCKSTEP_ERROR_FILE"] = files_of(folder, rank).error.string();
  result.emplace("OMP_NUM_THREADS", std::to_string(processors_for_each_of(options.world_size)));
  return result;
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const std::string path = environment("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (std::size_t start = 0; start <= path.size();) {
    const std::size_t end = std::min(path.find(':', start), path.size());
    const std::string folder = path.substr(start, end - start);
    const auto candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
    std::error_code ignored;  // A folder of PATH that cannot be read holds nothing for us.
    if (std::filesystem::is_regular_file(candidate, ignored) &&
        access(candidate.c_str(), X_OK) == 0)
      return candidate.string();
    start = end + 1;
  }
  throw Error("cannot start the ranks: no folder of PATH holds a program named " + name +
              "; name it by its path");
}

}  // namespace lockstep::launch
