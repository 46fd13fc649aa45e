#include <lockstep/base/say.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <optional>

namespace lockstep {
namespace {

constexpr int kPatienceMs = 5000;

std::optional<struct stat> file_of_number_two() {
  struct stat file {};
  if (fstat(STDERR_FILENO, &file) != 0) return std::nullopt;
  return file;
}

// A library may be loaded when its program has closed it; then there is none.
std::optional<struct stat> standard_error = file_of_number_two();

bool is_there() {
  const auto now = file_of_number_two();
  return now && standard_error && now->st_dev == standard_error->st_dev &&
         now->st_ino == standard_error->st_ino;
}

// While it is there, this thread gets no signal for what it writes.
class Unsignalled {
 public:
  Unsignalled() {
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGTTOU);
    sigaddset(&both, SIGPIPE);
    had_pipe_ = is_pending();
    pthread_sigmask(SIG_BLOCK, &both, &before_);
  }
  ~Unsignalled() {
    if (!had_pipe_ && is_pending()) {
      sigset_t pipe;
      sigemptyset(&pipe);
      sigaddset(&pipe, SIGPIPE);
      const timespec at_once{};
      sigtimedwait(&pipe, nullptr, &at_once);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Unsignalled(const Unsignalled&) = delete;
  Unsignalled& operator=(const Unsignalled&) = delete;

 private:
  static bool is_pending() {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
  }
  sigset_t before_{};
  bool had_pipe_ = false;
};

bool has_room() {
  pollfd there{STDERR_FILENO, POLLOUT, 0};
  return poll(&there, 1, kPatienceMs) == 1;
}

}  // namespace

void note_standard_error() {
  standard_error = file_of_number_two();
}

void say(std::string_view lines) noexcept {
  const int error = errno;
  {
    const Unsignalled meanwhile;
    while (!lines.empty() && is_there()) {
      const auto written = write(STDERR_FILENO, lines.data(), lines.size());
      if (written >= 0)
        lines.remove_prefix(static_cast<std::size_t>(written));
      else if (errno != EINTR && (errno != EAGAIN || !has_room()))
        break;
    }
  }
  errno = error;
}

}  // namespace lockstep
