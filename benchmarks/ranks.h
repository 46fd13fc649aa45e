// A benchmark that starts itself again, as the ranks of a job.
#pragma once

#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/guarded.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::benchmark {

struct AsRank {
  launch::Placement place;
  std::filesystem::path folder;  // of all ranks, and of who started them
};

// Nothing in the process that the user has started.
inline std::optional<AsRank> as_rank() {
  const auto folder = environment("LOCKSTEP_BENCHMARK_FOLDER");
  const auto place = launch::placement_from_environment();
  if (!folder || !place) return std::nullopt;
  return AsRank{*place, *folder};
}

// Runs `command` as ranks that share `folder`. What rank 0 wrote to standard error; throws Error where a rank fails.
inline std::string run_ranks(const std::vector<std::string>& command, int world_size,
                             const std::filesystem::path& folder,
                             std::map<std::string, std::string> environment = {},
                             std::chrono::minutes deadline = std::chrono::minutes(20)) {
  const TemporaryFolder ranks("lockstep-benchmark-ranks");
  environment["LOCKSTEP_BENCHMARK_FOLDER"] = folder;
  const auto result = launch::launch({.command = command,
                                      .world_size = world_size,
                                      .environment = environment,
                                      .folder = ranks.path(),
                                      .deadline = deadline});
  if (!result.completed()) throw Error(result.summary());
  return read_file(ranks.path() / "rank_0.err");
}

}  // namespace lockstep::benchmark
