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
  void (*dump)(int) = nullptr;  // faulthandler's handler
  // By which signals faulthandler knows into which file, and of which threads. They are names of that alone: what the
  // signals themselves do stays. 0: there is none.
  std::atomic<int> of_one_thread{0}, of_all_threads{0};
  Action interrupt{}, terminate{};  // as they were
} stacks;

bool is_open() {
  struct stat now {};
  return stacks.descriptor >= 0 && fstat(stacks.descriptor, &now) == 0 &&
         now.st_dev == stacks.file.st_dev && now.st_ino == stacks.file.st_ino;
}

// Of a child that it forked, such as a worker of a DataLoader, the number stands before its stacks.
void tell_child() {
  char text[32];
  auto* begin = text + sizeof(text);
  *--begin = '\n';
  for (auto left = getpid(); left > 0; left /= 10) *--begin = static_cast<char>('0' + left % 10);
  *--begin = '#';
  [[maybe_unused]] const auto told =
      write(stacks.descriptor, begin, static_cast<std::size_t>(text + sizeof(text) - begin));
}

void dump(int name) {
  if (name == 0) return;
  if (stacks.process != getpid()) tell_child();
  stacks.dump(name);
  [[maybe_unused]] const auto ended =
      write(stacks.descriptor, "--\n", 3);  // whoever reads it waits for that
}

void write_stack(int number) {
  const int error = errno;
  const bool is_asked_child = number == SIGRTMIN && stacks.process == getppid();
  if ((stacks.process == getpid() || is_asked_child) && Py_IsInitialized() != 0 && is_open())
    dump(number == SIGRTMIN ? stacks.of_all_threads : stacks.of_one_thread);
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

// The name of what `dump` writes of one thread or all, among the signals that programs use least. A handler of
// faulthandler's is taken from it.
int named(bool all_threads) {
  const auto faulthandler = py::module_::import("faulthandler");
  for (int name = (SIGRTMIN + SIGRTMAX) / 2; name < SIGRTMAX; ++name) {
    const auto before = action_of(name);
    if (before.sa_handler != SIG_DFL || name == stacks.of_one_thread ||
        name == stacks.of_all_threads)
      continue;
    faulthandler.attr("register")(name, stacks.descriptor, all_threads, false);
    stacks.dump = action_of(name).sa_handler;
    sigaction(name, &before, nullptr);
    return name;
  }
  return 0;
}

void forget(std::atomic<int>& name) {
  const int number = name.exchange(0);
  if (number == 0) return;
  const auto before = action_of(number);
  py::module_::import("faulthandler").attr("unregister")(number);
  sigaction(number, &before, nullptr);
}

}  // namespace

void write_stacks_into(int descriptor, bool when_asked) {
  stacks.process = 0;
  forget(stacks.of_one_thread);
  forget(stacks.of_all_threads);
  if (is_open()) close(stacks.descriptor);
  stacks.descriptor = descriptor;
  if (descriptor < 0 || fstat(descriptor, &stacks.file) != 0) return;
  stacks.of_one_thread = named(false);
  const auto asked = action_of(SIGRTMIN);
  if (when_asked && (asked.sa_handler == SIG_DFL || asked.sa_handler == write_stack)) {
    stacks.of_all_threads = named(true);
    listen(SIGRTMIN, asked);
  }
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

void leave_signal(int number) {
  for (auto* name : {&stacks.of_one_thread, &stacks.of_all_threads}) {
    if (*name != number) continue;
    const int other = named(name == &stacks.of_all_threads);
    forget(*name);
    *name = other;
  }
}

}  // namespace lockstep::python
