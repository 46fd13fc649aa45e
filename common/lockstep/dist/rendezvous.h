// The store through which the ranks of a job find each other. Internal to dist.
#pragma once

#include <lockstep/dist/backends.h>

#include <chrono>
#include <optional>
#include <string>

namespace lockstep::detail {

// An init_method, taken apart.
struct Rendezvous {
  enum class Kind { none, file, tcp } kind = Kind::none;  // none: a single rank
  std::string text = {};                                  // for messages
  std::string path = {};                                  // file
  std::string host = {};                                  // tcp
  int port = 0;
  bool agent_store = false;  // torchrun's agent holds the TCP store; every rank is its client
  bool restarts = false;     // and starts a failed job again, with the same store
};

// Reads env:// from the environment. Throws UsageError for a malformed or unknown method, or a
// missing variable.
Rendezvous parse_rendezvous(const std::string& init_method, int world_size);

// Who must reach the store that rank 0 serves.
enum class Reach { machine, network };

// Blocks, at most `timeout`, for a TCP store that is not there yet. Rank 0's listens, for
// Reach::machine, at one local address of the host: a loopback one where it has any. For
// Reach::network, and where no address of the host is this machine's, on every interface, and says so
// on stderr. `told` hears of a TCP store, where it is given.
StorePtr open_store(const Rendezvous& rendezvous, const Ranks& ranks, Reach reach,
                    std::chrono::milliseconds timeout,
                    const std::function<void(const StoreOpening&)>& told = {});

}  // namespace lockstep::detail
