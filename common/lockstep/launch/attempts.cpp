#include <lockstep/launch/attempts.h>
#include <lockstep/trace/attempts.h>

#include <string>

namespace lockstep::launch {

std::vector<Supervised> supervise_attempts(const SuperviseOptions& options, int max_restarts) {
  std::vector<Supervised> results;
  for (int attempt = 0; attempt <= max_restarts; ++attempt) {
    auto one = options;
    if (max_restarts > 0) {
      one.job.folder = trace::attempt_folder(options.job.folder, attempt);
      std::filesystem::create_directories(one.job.folder);
      std::filesystem::permissions(one.job.folder, std::filesystem::perms::owner_all);
    }
    one.job.environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(attempt);
    one.job.environment["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(max_restarts);
    results.push_back(supervise(one));
    const auto& launched = results.back().launch;
    if (launched.completed() || launched.interrupted != 0) break;
  }
  return results;
}

}  // namespace lockstep::launch
