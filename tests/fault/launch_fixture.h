// Ranks and launchers that misbehave as their scripts say (script.h); ordered through files, never
// through time. What a test leaves behind is looked for by tests/support/nothing_left.h.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/launch.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "script.h"

namespace lockstep::launch {

using fault::gone;

// Whether it became true within the time.
inline bool within(std::chrono::milliseconds time, const std::function<bool()>& condition) {
  const std::int64_t end = monotonic_ns() + std::chrono::nanoseconds(time).count();
  while (!condition()) {
    if (monotonic_ns() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class LaunchFault : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  pid_t pid_in(const std::string& name) const { return std::stoi(read_file(path(name))); }

  LaunchOptions ranks_that(std::vector<std::string> scripts,
                           const std::string& program = FAULT_RANK) const {
    LaunchOptions options;
    options.world_size = static_cast<int>(scripts.size());
    options.command = std::move(scripts);
    options.command.insert(options.command.begin(), program);
    options.folder = folder_.path();
    options.deadline = std::chrono::seconds(20);
    options.grace = std::chrono::milliseconds(500);
    options.linger = std::chrono::milliseconds(500);
    return options;
  }

  TemporaryFolder folder_{"lockstep-fault"};
};

// A launcher in a process of its own.
class Launcher {
 public:
  Launcher(const std::filesystem::path& folder, std::vector<std::string> scripts)
      : output_((folder / "launcher.out").string()) {
    std::vector<std::string> words{FAULT_RANK, "launch", std::to_string(scripts.size()),
                                   folder.string()};
    words.insert(words.end(), scripts.begin(), scripts.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    // As from a terminal, whatever the tests themselves were started to ignore.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t heard;
    sigemptyset(&heard);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&heard, signal);
    posix_spawnattr_setsigdefault(&attributes, &heard);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    if (posix_spawn(&pid_, FAULT_RANK, &actions, &attributes, arguments.data(), environ) != 0)
      pid_ = -1;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Launcher() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  pid_t pid() const { return pid_; }
  std::string output() const { return read_file(output_); }
  // The exit code as a shell has it; -1 when it still runs after the time.
  int exit_code(std::chrono::milliseconds time) {
    int status = 0;
    if (!within(time, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  std::string output_;
  pid_t pid_ = -1;
};

}  // namespace lockstep::launch
