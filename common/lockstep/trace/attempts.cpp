#include <lockstep/base/error.h>
#include <lockstep/trace/alone_before.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/clocks.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <system_error>

namespace lockstep::trace {
namespace {

std::int64_t last_step(const Trace& attempt) {
  std::int32_t last = -1;
  for (const auto& rank : attempt.ranks)
    for (const auto& event : rank.events) last = std::max(last, event.step);
  return last;
}

std::int64_t first_moment(const Trace& attempt) {
  auto first = std::numeric_limits<std::int64_t>::max();
  for (const auto& rank : attempt.ranks)
    if (!rank.events.empty()) first = std::min(first, rank.events.front().time_ns);
  return first;
}

std::int64_t last_moment(const std::map<int, ParticipantTrace>& ranks) {
  auto last = std::numeric_limits<std::int64_t>::min();
  for (const auto& [number, rank] : ranks)
    for (const auto& event : rank.events) last = std::max({last, event.time_ns, event.left_ns});
  return last;
}

bool has_ranks(const std::filesystem::path& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    if (is_of_a_rank(entry.path())) return true;
  return false;
}

// Of the job's own: not a link, which may lead to another job's.
bool is_folder(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::symlink_status(path, none).type() ==
         std::filesystem::file_type::directory;
}

// What is done to an attempt's events so that they stand behind those of the attempts before.
struct Shift {
  std::int64_t steps = 0;
  std::int64_t time_ns = 0;  // of another machine's clock, or of another boot's
  std::string groups;        // added to the names of its groups
};

// Puts `later` behind `rank`.
void append(ParticipantTrace& rank, ParticipantTrace later, const Shift& shift) {
  for (auto& event : later.events) {
    event.step =
        static_cast<std::int32_t>(std::min<std::int64_t>(event.step + shift.steps, kMostSteps));
    event.time_ns = moved(event.time_ns, shift.time_ns);
    if (event.left_ns != 0) event.left_ns = moved(event.left_ns, shift.time_ns);
    if (shift.groups.empty()) continue;
    if (auto* call = event.change<Collective>()) call->group += shift.groups;
    if (auto* group = event.change<Group>()) group->name += shift.groups;
  }
  if (rank.events.empty())
    rank.events = std::move(later.events);
  else
    std::move(later.events.begin(), later.events.end(), std::back_inserter(rank.events));
  if (rank.started_ns == 0) {
    rank.started_ns = later.started_ns;
    rank.started_unix_ns = later.started_unix_ns;
  }
  rank.closed = later.closed;
  rank.pid = later.pid;
  rank.truncated = rank.truncated || later.truncated;
  rank.had_no_room = rank.had_no_room || later.had_no_room;
  rank.runs = later.runs;
}

}  // namespace

std::filesystem::path attempt_folder(const std::filesystem::path& job_folder, int attempt) {
  return job_folder / ("attempt_" + std::to_string(attempt));
}

std::vector<std::filesystem::path> attempt_folders(const std::filesystem::path& job_folder) {
  std::vector<std::filesystem::path> folders;
  for (int attempt = 0; is_folder(attempt_folder(job_folder, attempt)); ++attempt)
    folders.push_back(attempt_folder(job_folder, attempt));
  const auto alone = job_folder / "alone";
  if (folders.empty())
    folders.push_back(is_folder(alone) && !has_ranks(job_folder) ? alone : job_folder);
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
    leave_out_alone_before(attempt);
    const auto last = last_step(attempt);
    Shift shift{.steps = steps};
    if (number > 0) {
      shift.groups = " of attempt " + std::to_string(number + 1);
      const auto begin = first_moment(attempt), end = last_moment(ranks);
      if (begin < end) shift.time_ns = end - begin;
    }
    // Also of a rank that left nothing in this one.
    for (auto& [place, rank] : ranks) rank.last_attempt = rank.events.size();
    for (auto& rank : attempt.ranks) {
      auto& of_all = ranks[rank.participant.rank];
      of_all.participant = rank.participant;
      append(of_all, std::move(rank), shift);
    }
    for (auto& ended : attempt.ends) ended.ended_ns = moved(ended.ended_ns, shift.time_ns);
    steps += last + 2;                     // -1 of the next one is a step of its own
    whole.ends = std::move(attempt.ends);  // of the last one
    whole.alone = std::move(attempt.alone);
  }
  for (auto& [place, rank] : ranks) whole.ranks.push_back(std::move(rank));
  return whole;
}

Trace read_job(const std::filesystem::path& job_folder) {
  std::vector<Trace> attempts;
  for (const auto& folder : attempt_folders(job_folder)) attempts.push_back(read(folder));
  return concatenate(std::move(attempts));
}

}  // namespace lockstep::trace
