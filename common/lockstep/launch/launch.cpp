#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/descendants.h>
#include <lockstep/launch/error_file.h>
#include <lockstep/launch/interrupt.h>
#include <lockstep/launch/launch.h>
#include <lockstep/launch/rank_environment.h>
#include <lockstep/launch/result.h>
#include <lockstep/launch/spawn.h>
#include <lockstep/launch/waiter.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
// From KILL to the end of launch(): a process that is still there then sits in the kernel.
constexpr milliseconds kAfterKill{1'800};
constexpr std::size_t kTailBytes = 4096;
constexpr std::int64_t kLookEvery = 100'000'000;  // at whether the job stalls

std::int64_t after(std::int64_t start_ns, milliseconds wait) {
  constexpr milliseconds kYear = std::chrono::hours(24 * 365);  // keeps the sum in range
  return start_ns + std::chrono::nanoseconds(std::min(wait, kYear)).count();
}

void check(const LaunchOptions& options) {
  const auto refuse = [](const std::string& why) { throw UsageError("launch: " + why); };
  if (options.command.empty() || options.command.front().empty()) refuse("no command to run");
  if (options.world_size < 1)
    refuse("world_size must be at least 1, and is " + std::to_string(options.world_size));
  if (options.deadline <= milliseconds(0)) refuse("the deadline must be longer than 0 ms");
  if (options.grace < milliseconds(0) || options.linger < milliseconds(0))
    refuse("grace and linger must not be negative");
  struct stat folder {};
  const std::string name = options.folder.string();
  if (stat(name.c_str(), &folder) != 0)
    refuse("cannot use the folder \"" + name + "\": " + std::strerror(errno));
  if (!S_ISDIR(folder.st_mode)) refuse("\"" + name + "\" is not a folder");
  if (folder.st_uid != geteuid() || (folder.st_mode & 0077) != 0)
    refuse("the folder " + name +
           " must be yours alone (chmod 700): ranks meet through a file in it");
}

// The end of the file, from the start of a line, without the last line break.
std::string tail_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "";
  const auto size = static_cast<std::size_t>(in.tellg());
  const std::size_t start = size > kTailBytes ? size - kTailBytes : 0;
  in.seekg(static_cast<std::streamoff>(start));
  std::string text(std::min(size, kTailBytes), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  const auto line_end = text.find('\n');
  if (start > 0 && line_end != std::string::npos) text.erase(0, line_end + 1);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// The signal that froze the process (SIGSTOP); 0 when it is not frozen.
int freezing_signal(pid_t pid) {
  siginfo_t info{};
  const int flags = WSTOPPED | WNOHANG | WNOWAIT;
  if (waitid(P_PID, static_cast<id_t>(pid), &info, flags) != 0 || info.si_pid == 0) return 0;
  return info.si_status;
}

std::string still_there(pid_t pid) {
  return "process " + std::to_string(pid) +
         " is still there after SIGKILL, in uninterruptible sleep: look at what it waits for "
         "(/proc/" +
         std::to_string(pid) + "/stack)";
}

// Whether the last record of the file through which ranks meet is only begun: a writer was killed in the middle of it.
// FileStore never notices: whoever reads it from then on spins, with its lock held. Only for a file that nobody writes
// any more; false where there is none. It holds texts, one after another, each behind its size; keys and values in turn.
bool is_torn(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return false;
  const auto end = static_cast<std::uint64_t>(in.tellg());
  std::uint64_t at = 0, texts = 0;
  while (at < end) {
    std::uint32_t size = 0;
    if (end - at < sizeof size) return true;
    in.seekg(static_cast<std::streamoff>(at));
    if (!in.read(reinterpret_cast<char*>(&size), sizeof size)) return true;
    at += sizeof size + std::uint64_t{size};
    ++texts;
  }
  return at > end || texts % 2 != 0;
}

class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const Waiter& waiter)
      : options_(options), waiter_(waiter), folder_(std::filesystem::absolute(options.folder)) {}
  ~Supervisor() {
    if (!over_) end_everything(after(monotonic_ns(), kAfterKill));  // it was left by an exception
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void start();
  LaunchResult watch();

 private:
  enum class Phase { running, terminating, killing };
  struct Rank {
    Process process;
    bool running = true;  // false: ended, though kept unreaped so that its pid stays its own
    RankEnd end;
  };

  bool any_running() const;
  void wait_for_events();
  void collect();
  void record_end(Rank& rank, const siginfo_t& info);
  void take_interrupts();
  void look();
  void advance();
  void terminate(End reason);
  void kill_groups();
  void abandon_running();
  std::set<pid_t> end_everything(std::int64_t until_ns);
  void read_tails();
  void look_at_the_rendezvous();

  const LaunchOptions& options_;
  const Waiter& waiter_;
  const std::filesystem::path folder_;
  const std::set<pid_t> spared_ = children();
  const Subreaper subreaper_;
  Interrupt interrupt_;
  std::vector<Rank> ranks_;
  LaunchResult result_;

  Phase phase_ = Phase::running;
  End reason_ = End::stopped;  // why the launcher ends ranks, once it does
  bool torn_ = false;          // the file they meet through, when it did
  bool over_ = false;
  std::int64_t started_ns_ = monotonic_ns();
  std::int64_t due_ns_ = after(started_ns_, options_.deadline);  // of the next phase
  std::int64_t deadline_ns_ = due_ns_;
  std::int64_t look_ns_ = options_.stalls ? started_ns_ : kNever;
  std::int64_t terminated_ns_ = kNever;
  std::int64_t killed_ns_ = kNever;
};

void Supervisor::start() {
  // A rendezvous or a report that an earlier run left would be taken for this one's.
  std::filesystem::remove(folder_ / "store");
  for (int rank = 0; rank < options_.world_size; ++rank)
    std::filesystem::remove(files_of(folder_, rank).error);

  const std::string program = find_program(options_.command.front());
  const bool goes_on = options_.go_on && can_go_on_in_a_child();
  ranks_.reserve(static_cast<std::size_t>(options_.world_size));
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const RankFiles files = files_of(folder_, rank);
    const Command command{program,   options_.command, rank_environment(options_, folder_, rank),
                          files.out, files.err,        goes_on ? options_.go_on : nullptr};
    Rank started;
    started.process = spawn(command);
    started.end.rank = rank;
    ranks_.push_back(std::move(started));
  }
}

LaunchResult Supervisor::watch() {
  while (any_running()) {
    wait_for_events();
    collect();
    take_interrupts();
    look();
    advance();
  }
  auto left = end_everything(phase_ == Phase::killing ? after(killed_ns_, kAfterKill)
                                                      : after(monotonic_ns(), kAfterKill));
  over_ = true;  // what is still there now is there to stay
  for (const Rank& rank : ranks_) left.erase(rank.process.pid);  // told of in its own line
  for (const pid_t pid : left) std::cerr << "warning: " + still_there(pid) + "\n";
  read_tails();
  look_at_the_rendezvous();
  for (Rank& rank : ranks_) result_.ranks.push_back(std::move(rank.end));
  ranks_.clear();
  result_.root_cause = find_root_cause(result_.ranks);
  result_.wall = std::chrono::nanoseconds(monotonic_ns() - started_ns_);
  return std::move(result_);
}

bool Supervisor::any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
}

// Until a rank ends, a signal comes, or the next phase or look is due.
void Supervisor::wait_for_events() {
  std::vector<pollfd> watched{{interrupt_.fd(), POLLIN, 0}};
  for (const Rank& rank : ranks_)
    if (rank.running) watched.push_back({rank.process.pidfd.get(), POLLIN, 0});
  const std::int64_t left_ms = (std::min(due_ns_, look_ns_) - monotonic_ns()) / 1'000'000 + 1;
  const auto timeout = static_cast<int>(std::clamp<std::int64_t>(left_ms, 0, 60'000));
  if (poll(watched.data(), watched.size(), timeout) < 0 && errno != EINTR)
    throw Error(std::string("cannot wait for the ranks: ") + std::strerror(errno));
}

void Supervisor::collect() {
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    siginfo_t info{};
    if (waiter_.has_ended(rank.process.pid, info)) record_end(rank, info);
  }
}

void Supervisor::record_end(Rank& rank, const siginfo_t& info) {
  rank.running = false;
  RankEnd& end = rank.end;
  if (end.end == End::signalled) return;  // It was found frozen, and the launcher ended it.
  end.ended_ns = monotonic_ns();
  end.signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
  end.exit_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;

  const auto report = read_error_file(files_of(folder_, end.rank).error);
  const bool own_report = report && report->raised_ns < terminated_ns_;
  if (report) end.error = report->text;
  if (own_report && end.exit_code != 0) {
    end.end = End::raised;
    end.collective = report->collective;
    end.ended_ns = report->raised_ns;
  } else if (phase_ != Phase::running &&
             (end.signal == 0 || end.signal == SIGTERM || end.signal == SIGKILL)) {
    end.end = reason_;
    end.ended_ns = terminated_ns_;  // how long it took to obey says nothing
  } else if (end.exit_code != 0) {
    end.end = end.signal != 0 ? End::signalled : End::exited;
  }
  if (end.end == End::completed) end.error.clear();
  // The first failure shortens the time that the others have.
  if (phase_ == Phase::running && end.end != End::completed)
    due_ns_ = std::min(due_ns_, after(monotonic_ns(), options_.linger));
}

void Supervisor::take_interrupts() {
  while (const auto signal = interrupt_.take()) {
    if (result_.interrupted == 0) {
      result_.interrupted = *signal;
      if (phase_ == Phase::running) terminate(End::stopped);
    } else if (phase_ == Phase::terminating) {
      kill_groups();  // asked twice
    }
  }
}

void Supervisor::look() {
  if (phase_ != Phase::running || monotonic_ns() < look_ns_ || !any_running()) return;
  look_ns_ = monotonic_ns() + kLookEvery;
  if (!options_.stalls()) return;
  result_.stalled = true;
  terminate(End::stopped);
}

void Supervisor::advance() {
  const std::int64_t now = monotonic_ns();
  if (now < due_ns_ || !any_running()) return;
  switch (phase_) {
    case Phase::running:
      result_.deadline_expired = now >= deadline_ns_;
      return terminate(result_.deadline_expired ? End::deadline : End::stopped);
    case Phase::terminating:
      return kill_groups();
    case Phase::killing:
      return abandon_running();
  }
}

void Supervisor::terminate(End reason) {
  reason_ = reason;
  phase_ = Phase::terminating;
  look_ns_ = kNever;
  terminated_ns_ = monotonic_ns();
  due_ns_ = after(terminated_ns_, options_.grace);
  torn_ = is_torn(folder_ / "store");
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    if (const int signal = freezing_signal(rank.process.pid);
        signal != 0 && result_.interrupted == 0) {
      rank.end.end = End::signalled;
      rank.end.signal = signal;
      rank.end.exit_code = 128 + signal;
      rank.end.ended_ns = terminated_ns_;
    }
    kill(-rank.process.pid, SIGTERM);
    // A frozen process would take the TERM only once it runs again.
    kill(-rank.process.pid, SIGCONT);
  }
}

// The groups of ended ranks too: what they left running is in them.
void Supervisor::kill_groups() {
  phase_ = Phase::killing;
  killed_ns_ = monotonic_ns();
  due_ns_ = after(killed_ns_, kAfterKill);
  for (const Rank& rank : ranks_) kill(-rank.process.pid, SIGKILL);
}

void Supervisor::abandon_running() {
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    rank.running = false;
    rank.end.end = reason_;
    rank.end.signal = SIGKILL;
    rank.end.exit_code = 128 + SIGKILL;
    rank.end.ended_ns = monotonic_ns();
    rank.end.error = still_there(rank.process.pid);
  }
}

// Those still there.
std::set<pid_t> Supervisor::end_everything(std::int64_t until_ns) {
  for (const Rank& rank : ranks_) kill(-rank.process.pid, SIGKILL);
  return waiter_.end_children(spared_, until_ns);
}

void Supervisor::read_tails() {
  for (Rank& rank : ranks_) rank.end.output_tail = tail_of(files_of(folder_, rank.end.rank).err);
}

// What those that the launcher had to end may have been caught in. Now nobody writes to the file any
// more, and what is torn was torn before anybody was told to end.
void Supervisor::look_at_the_rendezvous() {
  if (!torn_ || !is_torn(folder_ / "store")) return;
  for (Rank& rank : ranks_) {
    const bool ended = rank.end.end == End::deadline || rank.end.end == End::stopped;
    if (!ended || !rank.end.error.empty()) continue;
    rank.end.error = "the file through which the ranks meet, " + (folder_ / "store").string() +
                     ", is torn: a rank was killed while it wrote there, and whoever reads it "
                     "waits for the rest for ever";
  }
}

bool has_ended(pid_t pid, siginfo_t& info) {
  info = {};
  if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
      errno != EINTR)
    throw Error("cannot wait for process " + std::to_string(pid) + ": " + std::strerror(errno));
  return info.si_pid != 0;
}

}  // namespace

Waiter system_waiter() {
  return {has_ended, end_children};
}

LaunchResult launch(const LaunchOptions& options, const Waiter& waiter) {
  check(options);
  Supervisor supervisor(options, waiter);
  supervisor.start();
  return supervisor.watch();
}

LaunchResult launch(const LaunchOptions& options) {
  return launch(options, system_waiter());
}

}  // namespace lockstep::launch
