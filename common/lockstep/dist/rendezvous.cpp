#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/attempt_store.h>
#include <lockstep/dist/rendezvous.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

namespace lockstep::detail {
namespace {

constexpr std::string_view kFile = "file://";
constexpr std::string_view kTcp = "tcp://";

int parse_port(const std::string& text, const std::string& where) {
  int port = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc{} || stop != end || port < 1 || port > 65535)
    throw UsageError(where + ": the port must be a number from 1 to 65535, and is \"" + text +
                     "\"");
  return port;
}

Rendezvous parse_file(const std::string& method) {
  Rendezvous result{.kind = Rendezvous::Kind::file, .text = method};
  result.path = method.substr(kFile.size());
  if (result.path.empty() || result.path.front() != '/')
    throw UsageError("init_method \"" + method +
                     "\": give an absolute path, as in file:///tmp/job");
  const auto folder = std::filesystem::path(result.path).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw UsageError("init_method \"" + method + "\": there is no folder " + folder.string());
  return result;
}

Rendezvous parse_tcp(const std::string& method) {
  Rendezvous result{.kind = Rendezvous::Kind::tcp, .text = method};
  const std::string address = method.substr(kTcp.size());
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0)
    throw UsageError("init_method \"" + method +
                     "\": give a host and a port, as in tcp://127.0.0.1:29500");
  result.host = address.substr(0, colon);
  if (result.host.front() == '[' && result.host.back() == ']')
    result.host = result.host.substr(1, result.host.size() - 2);
  result.port = parse_port(address.substr(colon + 1), "init_method \"" + method + "\"");
  return result;
}

Rendezvous parse_address(const std::string& method) {
  if (method.starts_with(kFile)) return parse_file(method);
  if (method.starts_with(kTcp)) return parse_tcp(method);
  throw UsageError("init_method \"" + method +
                   "\" is none of env://, file:///path and tcp://host:port");
}

Rendezvous parse_environment(int world_size) {
  if (const auto host = environment("MASTER_ADDR")) {
    const auto port = environment("MASTER_PORT");
    if (!port) throw UsageError("init_method env://: MASTER_ADDR is set, and MASTER_PORT is not");
    Rendezvous result{.kind = Rendezvous::Kind::tcp};
    result.host = *host;
    result.port = parse_port(*port, "MASTER_PORT");
    result.text = "env:// (MASTER_ADDR " + *host + ", MASTER_PORT " + *port + ")";
    result.agent_store = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
    result.restarts = environment_int("TORCHELASTIC_MAX_RESTARTS").value_or(0) > 0;
    return result;
  }
  if (const auto store = environment("LOCKSTEP_STORE")) return parse_address(*store);
  if (world_size == 1) return {.kind = Rendezvous::Kind::none, .text = "env://"};
  throw UsageError(
      "init_method env://: neither MASTER_ADDR nor LOCKSTEP_STORE is set. torchrun and the "
      "program's own launcher set them; srun and mpirun do not: set MASTER_ADDR (rank 0's host) "
      "and MASTER_PORT (a free port there) for them. Or give file:///path or tcp://host:port");
}

// ---- names, addresses and sockets of a rendezvous over TCP ----

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

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

// What the name stands for, loopback addresses first; nothing where it cannot be resolved.
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

// Blocks, at most so long, until the host has an address: in a cluster a name may come later than those
// that look for it. Then throws Error. (Left to itself c10d's store tries for twice its timeout, and prints its
// stack.)
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

// Blocks, at most so long, until somebody listens at the port; then throws std::runtime_error. (c10d's own
// attempts may take more than twice its timeout.)
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

// A socket that listens there; -1, with errno, where it cannot.
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

// Without the port.
std::string numeric(const Address& address) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address.bytes), address.size,
                                    text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "";
}

// ---- the store ----

using Told = std::function<void(const StoreOpening&)>;

// At one address of the host, so that a job of one machine is reached through no other: left to
// itself the store listens on every interface. Nothing where the host is not this machine. `opening` is
// filled in.
std::optional<int> listen_on_this_machine(const std::string& host, StoreOpening& opening) {
  for (const auto& address : addresses_of(host, opening.port)) {
    opening.address = numeric(address);
    const int socket_fd = listen_at(address);
    if (socket_fd >= 0) return socket_fd;
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
      opening.error = errno;
      throw Error("rank 0 cannot listen on " + host + ", port " + std::to_string(opening.port) +
                  ": " + std::strerror(opening.error));
    }
  }
  return std::nullopt;
}

// c10d's client waits for ever where somebody answers who is no store. It is then left alone, in a thread that
// nobody waits for.
StorePtr connect(const Rendezvous& rendezvous, const c10d::TCPStoreOptions& options,
                 std::chrono::milliseconds timeout) {
  std::promise<StorePtr> promise;
  auto connected = promise.get_future();
  std::thread([host = rendezvous.host, options, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  if (connected.wait_for(timeout) != std::future_status::ready)
    throw std::runtime_error(
        "somebody answers at " + rendezvous.host + ", port " + std::to_string(rendezvous.port) +
        ", and not as a store of c10d does (timeout " + std::to_string(timeout.count()) +
        " ms). Has another program that port?");
  return connected.get();
}

StorePtr open_tcp(const Rendezvous& rendezvous, const Ranks& ranks, Reach reach,
                  std::chrono::milliseconds timeout, StoreOpening& opening) {
  opening.port = rendezvous.port;
  opening.serves = ranks.rank == 0 && !rendezvous.agent_store;
  opening.error = EHOSTUNREACH;
  await_name(rendezvous.host, timeout);
  opening.error = 0;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(rendezvous.port);
  options.isServer = opening.serves;
  options.numWorkers = static_cast<std::size_t>(ranks.world_size);
  options.timeout = timeout;
  options.multiTenant = !rendezvous.agent_store;
  options.useLibUV = rendezvous.agent_store || environment("USE_LIBUV").value_or("1") == "1";
  if (options.isServer && reach == Reach::machine)
    options.masterListenFd = listen_on_this_machine(rendezvous.host, opening);
  if (options.isServer && !options.masterListenFd) {
    opening.address = "0.0.0.0";
    std::cerr << "warning: the job's store listens on every interface of this machine, port " +
                     std::to_string(rendezvous.port) +
                     ", and has no authentication: keep the port inside a network that you trust\n";
  }
  if (!options.isServer) {
    if (const auto found = addresses_of(rendezvous.host, rendezvous.port); !found.empty())
      opening.address = numeric(found.front());
    await_answer(rendezvous.host, rendezvous.port, timeout);
  }
  if (options.isServer) return c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
  return connect(rendezvous, options, timeout);
}

// Of what c10d throws, its text is all there is.
int error_of(const std::string& text) {
  const auto says = [&](std::string_view words) { return text.find(words) != std::string::npos; };
  if (says("EADDRINUSE") || says("Address already in use") || says("errno: 98")) return EADDRINUSE;
  if (says("imed out") || says("timeout")) return ETIMEDOUT;
  return EIO;
}

// Tells of it, whichever way it goes.
StorePtr open_tcp_and_tell(const Rendezvous& rendezvous, const Ranks& ranks, Reach reach,
                           std::chrono::milliseconds timeout, const Told& told) {
  StoreOpening opening;
  StorePtr store;
  try {
    store = open_tcp(rendezvous, ranks, reach, timeout, opening);
  } catch (const std::exception& error) {
    if (opening.error == 0) opening.error = error_of(error.what());
    if (told) told(opening);
    throw;
  }
  if (told) told(opening);
  return store;
}

}  // namespace

Rendezvous parse_rendezvous(const std::string& init_method, int world_size) {
  return init_method == "env://" ? parse_environment(world_size) : parse_address(init_method);
}

StorePtr open_store(const Rendezvous& rendezvous, const Ranks& ranks, Reach reach,
                    std::chrono::milliseconds timeout, const Told& told) {
  StorePtr store;
  if (rendezvous.kind == Rendezvous::Kind::none || ranks.world_size == 1)
    store = c10::make_intrusive<c10d::HashStore>();
  else if (rendezvous.kind == Rendezvous::Kind::file)
    store = c10::make_intrusive<c10d::FileStore>(rendezvous.path, ranks.world_size);
  else
    store = open_tcp_and_tell(rendezvous, ranks, reach, timeout, told);
  store->setTimeout(timeout);
  if (rendezvous.agent_store && rendezvous.restarts && ranks.world_size > 1)
    return part_of_this_attempt(store, ranks, timeout);
  return store;
}

}  // namespace lockstep::detail
