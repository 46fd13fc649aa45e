// Starts the ranks of a job on this machine, watches them, and leaves nothing behind.
//
// launch() belongs in a program before it starts threads. Each rank is a new process, in a process
// group of its own, killed by the kernel when its supervisor dies. Nothing
// here is collective, and nothing needs torch.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

// Where this process stands in a job; torchrun's words.
struct Placement {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
};

// Read from the environment: torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, else
// Slurm's (SLURM_PROCID ... of a task that srun started, which has SLURM_STEP_NUM_TASKS; a batch
// script is no rank), else Open MPI's (OMPI_COMM_WORLD_RANK ...). Nothing where no rank is named:
// this process is then to be the launcher. Throws UsageError when a variable is malformed or out of
// range, and for a WORLD_SIZE of several without any rank.
std::optional<Placement> placement_from_environment();

struct LaunchOptions {
  std::vector<std::string> command;  // program (a path, or found through PATH) and its arguments
  // Where it is set, and this process has one thread and no GPU open, a rank is a fork of this process that calls it,
  // with the rank's environment, in place of the command: its libraries are loaded already, which takes 0.3 s of a
  // processor with LibTorch. What this process has read of the environment before is the launcher's.
  std::function<int()> go_on = {};
  int world_size = 1;
  std::map<std::string, std::string> environment;  // added for every rank, after the launcher's own
  // Exists, 0700, owned by the caller. Receives rank_<r>.out, rank_<r>.err and rank_<r>.error.json.
  std::filesystem::path folder;
  std::chrono::milliseconds deadline{60'000};  // of the whole run, then TERM
  std::chrono::milliseconds grace{3'000};      // from TERM to KILL
  // When one rank fails its peers often fail after it; this long after the first failure the others
  // are ended too, so that a survivor cannot wait for the dead for ever.
  std::chrono::milliseconds linger{1'500};
  // Asked ten times a second while all ranks run; once it says yes, they are ended.
  std::function<bool()> stalls = {};
};

// How one rank ended.
enum class End {
  completed,  // exit code 0
  raised,     // left by an exception, whose text report_error wrote down
  exited,     // any other exit code, without a word
  signalled,  // ended, or stopped for good (SIGSTOP), by a signal that the launcher did not send
  deadline,   // still running at the deadline: ended by the launcher
  stopped,    // ended by the launcher: another rank had failed, the job stalled, or Ctrl-C
};
std::string to_string(End end);

struct RankEnd {
  int rank = 0;
  End end = End::completed;
  int exit_code = 0;          // as the shell has it: 128 + signal where a signal ended it
  int signal = 0;             // 0 where none did
  std::string error;          // raised: the exception's own text
  bool collective = false;    // raised: it was a CollectiveError, rarely the root cause
  std::int64_t ended_ns = 0;  // monotonic_ns(); deadline, stopped: when it was told to end
  std::string output_tail;    // the last lines of its stderr, at most 4 KiB
};

struct LaunchResult {
  std::vector<RankEnd> ranks;     // by rank
  std::optional<int> root_cause;  // the rank to look at first; nothing where all completed
  bool deadline_expired = false;
  bool stalled = false;  // LaunchOptions::stalls said so
  int interrupted = 0;   // SIGINT, SIGTERM or SIGHUP sent to the launcher: exit with 128 + it
  std::chrono::nanoseconds wall{0};

  bool completed() const {
    return !root_cause && !deadline_expired && !stalled && interrupted == 0;
  }
  // One or a few lines for a person: who failed first, how, and in its own words.
  std::string summary() const;
};

// Runs `world_size` copies of the command and returns when every one of them, and every process
// they started, is gone: at most deadline + grace + 2 s after the call. Each gets RANK, LOCAL_RANK,
// WORLD_SIZE, LOCAL_WORLD_SIZE, LOCKSTEP_STORE (file://<folder>/store, a fresh rendezvous for
// init_process_group), LOCKSTEP_ERROR_FILE and OMP_NUM_THREADS (processors / ranks, at least 1,
// unless it is set), and nothing of a torchrun, Slurm or Open MPI job that the launcher itself is
// in. While it runs, SIGINT, SIGTERM and SIGHUP end the ranks (a second one kills them at once) and
// then come back in `interrupted`; the process is a child subreaper; one call at a time. Throws
// UsageError for a bad option and Error when a process cannot be started (those already started are
// ended).
LaunchResult launch(const LaunchOptions& options);

// In a rank's main, for an exception that leaves it: writes what launch() reads as the rank's own
// error (LOCKSTEP_ERROR_FILE), and torchrun's TORCHELASTIC_ERROR_FILE in its format, by temp +
// rename. Does nothing when neither is set. Never throws.
void report_error(const std::exception& error) noexcept;

}  // namespace lockstep::launch
