#include "stacks.h"

#include <pybind11/pybind11.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace py = pybind11;

namespace lockstep::python {
namespace {

using Action = struct sigaction;

// What a signal's handler reads.
struct Stacks {
  std::atomic<pid_t> process{0};  // that writes; 0: none
  int descriptor = -1;
  struct stat file {};
  void (*dump)(int) = nullptr;      // faulthandler's handler
  Action interrupt{}, terminate{};  // as they were
} stacks;

// faulthandler keeps, by signal, into which file and of which threads. These two are used as names
// of that alone: what the signals themselves do stays, but for SIGRTMIN where ranks are asked.
int of_one_thread() {
  return SIGRTMAX;
}
int of_all_threads() {
  return SIGRTMIN;
}

bool is_open() {
  struct stat now {};
  return stacks.descriptor >= 0 && fstat(stacks.descriptor, &now) == 0 &&
         now.st_dev == stacks.file.st_dev && now.st_ino == stacks.file.st_ino;
}

void dump(int name) {
  stacks.dump(name);
  [[maybe_unused]] const auto ended =
      write(stacks.descriptor, "--\n", 3);  // whoever reads it waits for that
}

void write_stack(int number) {
  const int error = errno;
  if (stacks.process == getpid() && Py_IsInitialized() != 0 && is_open())
    dump(number == SIGRTMIN ? of_all_threads() : of_one_thread());
  errno = error;
  if (number == SIGRTMIN) return;
  const auto& before = number == SIGINT ? stacks.interrupt : stacks.terminate;
  if (before.sa_handler != SIG_DFL) return before.sa_handler(number);
  sigaction(number, &before, nullptr);
  raise(number);  // it comes when this returns
}

Action action_of(int number) {
  Action action{};
  sigaction(number, nullptr, &action);
  return action;
}

void listen(int number, Action action) {
  action.sa_handler = write_stack;
  sigaction(number, &action, nullptr);
}

// faulthandler's handlers have one of these flags, and Python's has none.
bool is_pythons_own(const Action& interrupt) {
  const auto signals = py::module_::import("signal");
  return (interrupt.sa_flags & (SA_RESTART | SA_NODEFER | SA_SIGINFO)) == 0 &&
         interrupt.sa_handler != write_stack &&
         signals.attr("getsignal")(SIGINT).is(signals.attr("default_int_handler"));
}

// Whether `dump` writes by this name. Not where the program uses the signal.
bool can_dump(int name, bool all_threads) {
  const auto before = action_of(name);
  if (before.sa_handler != SIG_DFL && before.sa_handler != write_stack) return false;
  py::module_::import("faulthandler").attr("register")(name, stacks.descriptor, all_threads, false);
  const auto now = action_of(name);
  if (now.sa_handler != before.sa_handler) stacks.dump = now.sa_handler;
  sigaction(name, &before, nullptr);
  return stacks.dump != nullptr;
}

}  // namespace

void write_stacks_into(int descriptor, bool when_asked) {
  stacks.process = 0;
  if (is_open()) close(stacks.descriptor);
  stacks.descriptor = descriptor;
  if (descriptor < 0 || fstat(descriptor, &stacks.file) != 0 || !can_dump(of_one_thread(), false))
    return;
  if (when_asked && can_dump(of_all_threads(), true)) listen(SIGRTMIN, action_of(SIGRTMIN));
  if (const auto now = action_of(SIGINT); is_pythons_own(now)) {
    stacks.interrupt = now;
    listen(SIGINT, now);
  }
  if (const auto now = action_of(SIGTERM); now.sa_handler == SIG_DFL) {
    stacks.terminate = now;
    listen(SIGTERM, now);
  }
  stacks.process = getpid();
}

}  // namespace lockstep::python
