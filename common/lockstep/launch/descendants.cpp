#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/descendants.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace lockstep::launch {
namespace {

// The parent's pid out of /proc/<pid>/stat, "pid (name) state ppid ..."; the name may hold
// anything, so the last bracket counts. 0 when the process is gone.
pid_t parent_of(const std::filesystem::path& folder) {
  std::ifstream in(folder / "stat");
  std::string text;
  // Fails, where an iterator throws, when the process ends meanwhile.
  std::getline(in, text, '\0');
  const auto bracket = text.rfind(')');
  if (bracket == std::string::npos || bracket + 4 >= text.size()) return 0;
  pid_t parent = 0;
  std::from_chars(text.data() + bracket + 4, text.data() + text.size(), parent);
  return parent;
}

}  // namespace

Subreaper::Subreaper() {
  if (prctl(PR_GET_CHILD_SUBREAPER, &before_) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
    throw Error(std::string("cannot become a child subreaper: ") + std::strerror(errno));
}

Subreaper::~Subreaper() {
  prctl(PR_SET_CHILD_SUBREAPER, before_);
}

std::set<pid_t> children() {
  std::set<pid_t> result;
  const pid_t self = getpid();
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  if (error) throw Error("cannot read /proc: " + error.message());
  // Processes come and go meanwhile; one that vanishes is none of ours.
  for (; entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [stop, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad != std::errc{} || stop != name.data() + name.size()) continue;
    if (parent_of(entry->path()) == self) result.insert(pid);
  }
  return result;
}

std::set<pid_t> end_children(const std::set<pid_t>& spared, std::int64_t until_ns) {
  for (;;) {
    std::set<pid_t> left = children();
    for (const pid_t pid : spared) left.erase(pid);
    if (left.empty()) return left;
    // A child cannot be reused under our feet: its pid stays taken until it is waited for here.
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    if (monotonic_ns() >= until_ns) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace lockstep::launch
