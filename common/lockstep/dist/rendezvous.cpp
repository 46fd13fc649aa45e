#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/addresses.h>
#include <lockstep/dist/attempt_store.h>
#include <lockstep/dist/rendezvous.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <iostream>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

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
