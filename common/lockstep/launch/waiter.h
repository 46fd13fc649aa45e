// How the launcher learns that a process has ended: a seam, since a process that no signal ends
// (uninterruptible sleep) cannot be made at will. Internal to launch and its tests.
#pragma once

#include <lockstep/launch/launch.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cstdint>
#include <functional>
#include <set>

namespace lockstep::launch {

struct Waiter {
  // Whether the child has ended, and how; it is not reaped.
  std::function<bool(pid_t pid, siginfo_t& info)> has_ended;
  // As end_children in descendants.h.
  std::function<std::set<pid_t>(const std::set<pid_t>& spared, std::int64_t until_ns)> end_children;
};

// The system's own.
Waiter system_waiter();

// launch(), with this one's word for it.
LaunchResult launch(const LaunchOptions& options, const Waiter& waiter);

}  // namespace lockstep::launch
