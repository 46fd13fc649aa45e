#include <lockstep/base/error.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <map>
#include <string>

namespace lockstep::trace {
namespace {

std::int64_t last_step(const Trace& attempt) {
  std::int64_t last = -1;
  for (const auto& rank : attempt.ranks)
    for (const auto& event : rank.events) last = std::max(last, event.step);
  return last;
}

// Puts `later` behind `rank`.
void append(ParticipantTrace& rank, ParticipantTrace later, std::int64_t steps,
            const std::string& name) {
  const auto end = rank.events.empty() ? 0 : rank.events.back().time_ns;
  const auto begin = later.events.empty() ? end : later.events.front().time_ns;
  const auto pause = std::max<std::int64_t>(0, end - begin);  // another machine's clock
  rank.last_attempt = rank.events.size();
  for (auto& event : later.events) {
    event.step += steps;
    event.time_ns += pause;
    if (auto* call = std::get_if<Collective>(&event.payload)) call->group += name;
    rank.events.push_back(std::move(event));
  }
  if (rank.started_ns == 0) {
    rank.started_ns = later.started_ns;
    rank.started_unix_ns = later.started_unix_ns;
  }
  rank.closed = later.closed;
  rank.pid = later.pid;
  rank.truncated = rank.truncated || later.truncated;
}

}  // namespace

std::filesystem::path attempt_folder(const std::filesystem::path& job_folder, int attempt) {
  return job_folder / ("attempt_" + std::to_string(attempt));
}

std::vector<std::filesystem::path> attempt_folders(const std::filesystem::path& job_folder) {
  std::vector<std::filesystem::path> folders;
  for (int attempt = 0; std::filesystem::is_directory(attempt_folder(job_folder, attempt));
       ++attempt)
    folders.push_back(attempt_folder(job_folder, attempt));
  if (folders.empty()) folders.push_back(job_folder);
  return folders;
}

Trace concatenate(std::vector<Trace> attempts) {
  if (attempts.empty()) throw UsageError("concatenate: no attempt was given");
  Trace whole;
  whole.world_size = attempts.front().world_size;
  std::map<int, ParticipantTrace> ranks;
  std::int64_t steps = 0;
  for (std::size_t number = 0; number < attempts.size(); ++number) {
    auto& attempt = attempts[number];
    if (attempt.world_size != whole.world_size)
      throw Error("the attempts are of " + std::to_string(whole.world_size) + " and of " +
                  std::to_string(attempt.world_size) + " ranks; diagnose them one by one");
    const auto last = last_step(attempt);
    for (auto& rank : attempt.ranks) {
      auto& of_all = ranks[rank.participant.rank];
      of_all.participant = rank.participant;
      append(of_all, std::move(rank), steps,
             number == 0 ? "" : " of attempt " + std::to_string(number + 1));
    }
    steps += last + 2;                     // -1 of the next one is a step of its own
    whole.ends = std::move(attempt.ends);  // of the last one
  }
  for (auto& [place, rank] : ranks) whole.ranks.push_back(std::move(rank));
  return whole;
}

}  // namespace lockstep::trace
