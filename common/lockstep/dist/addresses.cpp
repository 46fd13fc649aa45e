#include <lockstep/base/error.h>
#include <lockstep/dist/addresses.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace lockstep::detail {
namespace {

// The loopback addresses first, and of those the IPv4 ones.
int preference(const addrinfo& found) {
  if (found.ai_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(found.ai_addr);
    return ntohl(in->sin_addr.s_addr) >> 24 == 127 ? 0 : 2;
  }
  const auto* in = reinterpret_cast<const sockaddr_in6*>(found.ai_addr);
  return IN6_IS_ADDR_LOOPBACK(&in->sin6_addr) ? 1 : 3;
}

// By chance the kernel may give a socket the very port that it is to connect to: it then meets itself.
bool is_own_end(int socket_fd) {
  Address here, there;
  here.size = there.size = sizeof(here.bytes);
  return ::getsockname(socket_fd, reinterpret_cast<sockaddr*>(&here.bytes), &here.size) == 0 &&
         ::getpeername(socket_fd, reinterpret_cast<sockaddr*>(&there.bytes), &there.size) == 0 &&
         here.size == there.size && std::memcmp(&here.bytes, &there.bytes, here.size) == 0;
}

// Whether somebody listens there, at most `timeout` later.
bool answers(const Address& address, std::chrono::milliseconds timeout) {
  const int socket_fd =
      ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket_fd < 0) return false;
  int failure = 0;
  socklen_t size = sizeof(failure);
  if (::connect(socket_fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0) {
    failure = errno;
    pollfd ready{.fd = socket_fd, .events = POLLOUT, .revents = 0};
    if (failure == EINPROGRESS && ::poll(&ready, 1, static_cast<int>(timeout.count())) == 1)
      ::getsockopt(socket_fd, SOL_SOCKET, SO_ERROR, &failure, &size);
  }
  const bool connected = failure == 0 && !is_own_end(socket_fd);
  ::close(socket_fd);
  return connected;
}

// What the system says of the name, or nothing where it has not said it by then: where no name server
// answers it asks for some 20 s, and cannot be stopped.
std::optional<int> look_up(const std::string& host, std::chrono::steady_clock::time_point until) {
  const auto said = std::make_shared<std::promise<int>>();
  auto answer = said->get_future();
  std::thread([host, said] {
    addrinfo* found = nullptr;
    const int failure = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (failure == 0) ::freeaddrinfo(found);
    said->set_value(failure);
  }).detach();
  if (answer.wait_until(until) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace

std::vector<Address> addresses_of(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return {};
  std::vector<std::pair<int, Address>> ranked;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    Address address{.size = at->ai_addrlen};
    std::memcpy(&address.bytes, at->ai_addr, at->ai_addrlen);
    ranked.emplace_back(preference(*at), address);
  }
  ::freeaddrinfo(found);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Address> addresses;
  for (const auto& [rank, address] : ranked) addresses.push_back(address);
  return addresses;
}

void await_name(const std::string& host, std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    const auto failure = look_up(host, until);
    if (failure == 0) return;
    if (!failure || std::chrono::steady_clock::now() >= until)
      throw Error("the host \"" + host + "\" has no address: " +
                  (failure ? ::gai_strerror(*failure) : "no name server has answered") +
                  " (timeout " + std::to_string(timeout.count()) +
                  " ms). Is the name right, and known to this machine?");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void await_answer(const std::string& host, int port, std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    for (const auto& address : addresses_of(host, port)) {
      const auto left = until - std::chrono::steady_clock::now();
      const auto wait = std::chrono::duration_cast<milliseconds>(left);
      if (answers(address, std::clamp(wait, milliseconds(1), milliseconds(1'000)))) return;
    }
    if (std::chrono::steady_clock::now() >= until)
      throw std::runtime_error(
          "nobody answers at " + host + ", port " + std::to_string(port) + " (timeout " +
          std::to_string(timeout.count()) +
          " ms). Is rank 0 running, and can its address be reached from here?");
    std::this_thread::sleep_for(milliseconds(50));
  }
}

int listen_at(const Address& address) {
  const int socket_fd = ::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return -1;
  const int on = 1;
  if (::setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      ::bind(socket_fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) == 0 &&
      ::listen(socket_fd, SOMAXCONN) == 0)
    return socket_fd;
  const int reason = errno;
  ::close(socket_fd);
  errno = reason;
  return -1;
}

std::string numeric(const Address& address) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address.bytes), address.size,
                                    text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
}

}  // namespace lockstep::detail
