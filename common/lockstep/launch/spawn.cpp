#include <fcntl.h>
#include <linux/close_range.h>
#include <lockstep/base/end_process.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/launch/interrupt.h>
#include <lockstep/launch/spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

namespace lockstep::launch {
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error("cannot " + what + ": " + std::strerror(error));
}

// Moved out of 0 to 2, which a caller may have closed and the child gives a meaning.
Descriptor above_standard(int fd, const std::string& what) {
  if (fd < 0) fail(what, errno);
  if (fd > 2) return Descriptor(fd);
  const Descriptor low(fd);
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (moved < 0) fail(what, errno);
  return Descriptor(moved);
}

Descriptor open_output(const std::filesystem::path& path) {
  return above_standard(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600),
      "write " + path.string());
}

// The descriptors and strings that the child needs: between fork and exec it may not allocate.
struct Plan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int in, out, err;
  int report;  // written to on failure, closed by a successful exec
  pid_t supervisor;
};

struct Failure {
  std::array<char, 12> call;
  int error;
};

// Only async-signal-safe calls from here on.
[[noreturn]] void give_up(const Plan& plan, const char* call) {
  Failure failure{{}, errno};
  for (std::size_t i = 0; i + 1 < failure.call.size() && call[i] != '\0'; ++i)
    failure.call[i] = call[i];
  [[maybe_unused]] const ssize_t written = write(plan.report, &failure, sizeof failure);
  _exit(127);
}

void settle(const Plan& plan) {
  if (setpgid(0, 0) != 0) give_up(plan, "setpgid");
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(plan, "prctl");
  // The supervisor may have died before the line above: then nothing would ever kill this process.
  if (getppid() != plan.supervisor) _exit(127);

  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);

  if (dup2(plan.in, 0) < 0 || dup2(plan.out, 1) < 0 || dup2(plan.err, 2) < 0) give_up(plan, "dup2");
}

[[noreturn]] void become(const Plan& plan) {
  settle(plan);
  // What the caller left open would keep its pipes and sockets alive. Kernels before 5.11 refuse;
  // the descriptors without close-on-exec are then inherited, as by any exec.
  syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(plan.program, plan.arguments, plan.environment);
  give_up(plan, "execve");
}

// Here the process has one thread, so that what is not async-signal-safe is safe, too.
[[noreturn]] void go_on(const Plan& plan, const std::function<int()>& work) noexcept {
  settle(plan);
  if (syscall(SYS_close_range, 3U, ~0U, 0) != 0)
    give_up(plan, "close_range");  // the report, too: it worked
  forget_interrupts();
  clearenv();
  for (char* const* entry = plan.environment; *entry != nullptr; ++entry) putenv(*entry);
  end_process(guarded(work));  // an exception must not reach the launcher's frames
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> entries(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

// All signals are blocked across the fork, so that none of the caller's handlers runs in the child.
pid_t fork_into(const Plan& plan, const std::function<int()>& work) {
  if (work) {  // what is not written yet would be written twice
    std::cout.flush();
    std::fflush(nullptr);
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0 && work) go_on(plan, work);
  if (pid == 0) become(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

void reap(pid_t pid) {
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Waits for the exec: end of file when it worked, else what failed.
void confirm_exec(int report, pid_t pid, const std::string& program) {
  Failure failure{};
  ssize_t size = 0;
  while ((size = read(report, &failure, sizeof failure)) < 0 && errno == EINTR) {
  }
  if (size == 0) return;
  reap(pid);
  fail("start " + program + " (" + failure.call.data() + ")", failure.error);
}

bool is_gpu(const std::filesystem::path& link) {
  std::error_code gone;  // the descriptor of this very listing
  return std::filesystem::read_symlink(link, gone).string().starts_with("/dev/nvidia");
}

}  // namespace

bool can_go_on_in_a_child() {
  using Folder = std::filesystem::directory_iterator;
  const Folder descriptors("/proc/self/fd"), end;
  return std::distance(Folder("/proc/self/task"), end) == 1 &&
         std::none_of(descriptors, end, [](const auto& each) { return is_gpu(each.path()); });
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Process spawn(const Command& command) {
  auto argument_texts = command.arguments;
  auto environment_texts = entries(command.environment);
  const auto arguments = pointers(argument_texts);
  const auto environment = pointers(environment_texts);

  const auto in = above_standard(open("/dev/null", O_RDONLY | O_CLOEXEC), "open /dev/null");
  const auto out = open_output(command.out);
  const auto err = open_output(command.err);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("create a pipe", errno);
  const auto result_end = above_standard(ends[0], "create a pipe");
  auto report_end = above_standard(ends[1], "create a pipe");

  const Plan plan{
      command.program.c_str(), arguments.data(), environment.data(), in.get(), out.get(), err.get(),
      report_end.get(),        getpid()};
  Process process;
  process.pid = fork_into(plan, command.go_on);
  if (process.pid < 0) fail("start a process for " + command.program, errno);
  { const Descriptor closed = std::move(report_end); }
  confirm_exec(result_end.get(), process.pid, command.program);

  process.pidfd = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0)));
  if (!process.pidfd) {
    const int error = errno;
    kill(-process.pid, SIGKILL);
    reap(process.pid);
    fail("watch the process for " + command.program + " (pidfd_open, Linux 5.3 or later)", error);
  }
  return process;
}

}  // namespace lockstep::launch
