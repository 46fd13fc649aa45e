#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/supervise.h>
#include <lockstep/trace/writer.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace lockstep::launch {
namespace {

// Whether some rank has been inside of one collective for longer than `patience`.
bool has_waited(const LaunchOptions& job, std::chrono::nanoseconds patience) {
  const auto now = monotonic_ns();
  for (int rank = 0; rank < job.world_size; ++rank) {
    const auto file = trace::trace_file(job.folder, rank);
    if (!std::filesystem::exists(file)) continue;  // it has not begun to record
    try {
      const auto board = trace::read_flight_board(file);
      if (board.closed) continue;  // it has ended in order
      if (std::any_of(board.in_flight.begin(), board.in_flight.end(),
                      [&](const auto& call) { return now - call.time_ns > patience.count(); }))
        return true;
    } catch (const Error&) {  // What is damaged is told of when the job is over.
      continue;
    }
  }
  return false;
}

void write_ends(const std::filesystem::path& folder, const LaunchResult& result) {
  trace::Writer writer(folder,
                       {.world_size = static_cast<int>(result.ranks.size()), .kind = "launcher"});
  for (const auto& rank : result.ranks)
    writer.record(trace::RankEnd{.rank = rank.rank,
                                 .how = to_string(rank.end),
                                 .exit_code = rank.exit_code,
                                 .signal = rank.signal,
                                 .collective = rank.collective,
                                 .ended_ns = rank.ended_ns});
}

bool has_traces(const LaunchOptions& job) {
  for (int rank = 0; rank < job.world_size; ++rank)
    if (std::filesystem::exists(trace::trace_file(job.folder, rank))) return true;
  return false;
}

}  // namespace

Supervised supervise(const SuperviseOptions& options) {
  if (options.patience.count() != 0 && options.patience < diagnose::kStallTime)
    throw UsageError("supervise: the patience must be 0 or at least " +
                     std::to_string(diagnose::kStallTime.count()) + " ms, and is " +
                     std::to_string(options.patience.count()) + " ms");
  auto job = options.job;
  if (options.patience.count() > 0)
    job.stalls = [&] { return has_waited(options.job, options.patience); };
  std::filesystem::remove(trace::launcher_file(job.folder));  // of an earlier job
  Supervised result;
  result.launch = launch(job);
  write_ends(job.folder, result.launch);
  if (has_traces(job)) {
    result.trace = trace::read(job.folder);
    result.stall = diagnose::stall_of(result.trace);
  }
  return result;
}

}  // namespace lockstep::launch
