// Names, addresses and sockets of a rendezvous over TCP. Internal to dist.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::detail {

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

// What the name stands for, loopback addresses first; nothing where it cannot be resolved.
std::vector<Address> addresses_of(const std::string& host, int port);
std::string numeric(const Address& address);  // without the port

// A socket that listens there; -1, with errno, where it cannot.
int listen_at(const Address& address);

// Blocks, at most so long, until the host has an address: in a cluster a name may come later than those
// that look for it. Then throws Error. (Left to itself c10d's store tries for twice its timeout, and prints its
// stack.)
void await_name(const std::string& host, std::chrono::milliseconds timeout);

// Blocks, at most so long, until somebody listens at the port; then throws std::runtime_error. (c10d's own
// attempts may take more than twice its timeout.)
void await_answer(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace lockstep::detail
