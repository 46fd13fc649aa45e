#include <fcntl.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/interrupt.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace lockstep::launch {
namespace {

// A signal handler has no other way to find the object.
std::atomic<int> write_end_of_handler{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // Non-blocking: when the pipe is full there are signals enough.
  [[maybe_unused]] const ssize_t written = write(write_end_of_handler.load(), &byte, 1);
  errno = error;
}

sigset_t interrupts() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void forget_interrupts() {
  write_end_of_handler = -1;
}

HeldInterrupts::HeldInterrupts() {
  const auto set = interrupts();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

HeldInterrupts::~HeldInterrupts() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Interrupt::Interrupt() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(std::string("cannot create a pipe: ") + std::strerror(errno));
  read_end_ = Descriptor(ends[0]);
  write_end_ = Descriptor(ends[1]);
  int nobody = -1;
  if (!write_end_of_handler.compare_exchange_strong(nobody, ends[1]))
    throw UsageError("launch() is already running in this process: call it once at a time");

  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    struct sigaction now {};
    now.sa_handler = kSignals[i] == SIGCHLD ? SIG_DFL : on_signal;
    now.sa_flags = SA_RESTART;
    const bool keep = kSignals[i] != SIGCHLD && before_[i].sa_handler == SIG_IGN;
    if (!keep) sigaction(kSignals[i], &now, nullptr);
  }
  const auto set = interrupts();
  pthread_sigmask(SIG_UNBLOCK, &set, &mask_before_);
}

Interrupt::~Interrupt() {
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  write_end_of_handler.store(-1);
}

std::optional<int> Interrupt::take() {
  unsigned char byte = 0;
  if (read(read_end_.get(), &byte, 1) != 1) return std::nullopt;
  return byte;
}

}  // namespace lockstep::launch
