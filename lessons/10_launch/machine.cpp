#include "machine.h"

#include <arpa/inet.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/launch.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

using namespace lockstep;
namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds kMost{30};  // that a rank waits for another here

// A TCP port of 127.0.0.1 and 127.0.0.2 that nobody else is given while this lives, and that this
// program may still listen at.
class Port {
 public:
  Port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    if (fd_ < 0 || ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::bind(fd_, at, size) != 0 || ::getsockname(fd_, at, &size) != 0)
      throw Error(std::string("no free port: ") + std::strerror(errno));
    number_ = ntohs(address.sin_port);
  }
  ~Port() { ::close(fd_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  int number() const { return number_; }

 private:
  int fd_;
  int number_ = 0;
};

// The store of a job with one rank, at that port of 127.0.0.1.
StorePtr serve_at(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(fd, SOMAXCONN) != 0)
    throw Error(std::string("the other job cannot serve: ") + std::strerror(errno));
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = true;
  options.masterListenFd = fd;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

}  // namespace

struct Machine::Sockets {
  Port free, other;
  StorePtr other_job;
};

Machine::Machine(const RankContext& context, OtherJob other_job) {
  const auto place = launch::placement_from_environment().value_or(launch::Placement{});
  if (place.local_world_size < place.world_size)
    throw UnavailableError("this part's ranks look for free ports and processes on one machine");
  const auto file = context.folder() / "machine";
  if (context.rank() == 0) {
    sockets_ = std::make_unique<Sockets>();
    if (other_job == OtherJob::runs) sockets_->other_job = serve_at(sockets_->other.number());
    std::ofstream(file.string() + ".new")
        << sockets_->free.number() << " " << sockets_->other.number() << " " << ::getpid() << "\n";
    fs::rename(file.string() + ".new", file);
  }
  const auto until = std::chrono::steady_clock::now() + kMost;
  while (!fs::exists(file)) {
    if (std::chrono::steady_clock::now() > until) throw Error("rank 0 does not say which ports");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::ifstream(file) >> free_port_ >> other_jobs_port_ >> rank_zero_;
}

Machine::~Machine() = default;

void Machine::until_rank_zero_is_gone() const {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, rank_zero_, 0));
  if (fd < 0) return;  // it is gone
  pollfd until{.fd = fd, .events = POLLIN, .revents = 0};
  ::poll(&until, 1, std::chrono::milliseconds(kMost).count());
  ::close(fd);
}
