// Ctrl-C and its relatives while launch() runs.
#pragma once

#include <lockstep/launch/spawn.h>

#include <array>
#include <csignal>
#include <optional>

namespace lockstep::launch {

// While it lives, SIGINT, SIGTERM and SIGHUP only make fd() readable (those the process ignores
// stay ignored, as under nohup), and SIGCHLD is at its default, so that children can be waited for.
// One that was held back (HeldInterrupts) comes now. The process's own handlers and its signal mask
// are back afterwards. Throws UsageError when another one lives.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  int fd() const { return read_end_.get(); }
  // The next signal that came; nothing where none is left. Does not block.
  std::optional<int> take();

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  Descriptor read_end_, write_end_;
  std::array<struct sigaction, kSignals.size()> before_{};
  sigset_t mask_before_{};
};

// In a child that goes on without exec (spawn.h): the parent's Interrupt is none of its own.
void forget_interrupts();

// While it lives, SIGINT, SIGTERM and SIGHUP to this thread wait: for the next launch(), or for its
// end. For a program that launches several jobs and has something to clean up between them.
class HeldInterrupts {
 public:
  HeldInterrupts();
  ~HeldInterrupts();
  HeldInterrupts(const HeldInterrupts&) = delete;
  HeldInterrupts& operator=(const HeldInterrupts&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep::launch
