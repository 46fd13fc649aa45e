// How the process group makes its backends. Internal to dist.
#pragma once

#include <lockstep/dist/process_group.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::detail {

// Where a rank stands, with everything known.
struct Ranks {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  // 0: not known
};

// In a group's store, for groups made from it: "machine" where all ranks are on one, else "network".
inline constexpr const char* kReachKey = "lockstep/reach";

// Ranks of whom the store has no key. Throws what the store throws.
std::vector<int> absent_ranks(c10d::Store& store, int world_size,
                              const std::function<std::string(int rank)>& key_of);
std::string each_rank(const std::vector<int>& ranks);  // "rank 1, rank 3"

// Collective over the group's ranks, blocking: a group of that name with its backend, whose ranks
// meet in `store`. What the rendezvous throws comes out, and says whom it did not see.
ProcessGroupPtr make_group(const InitOptions& options, const Ranks& ranks, bool loopback,
                           const StorePtr& store, const std::string& name);

struct BackendRequest {
  StorePtr store;
  Ranks ranks;
  bool loopback = true;  // all ranks are on this machine
  std::chrono::milliseconds timeout{};
};

// Collective, blocking.
BackendPtr make_gloo(const BackendRequest& request);

// Not collective. Loads lockstep_nccl once; throws UnavailableError where it cannot.
void load_nccl();
// Throws UnavailableError when this machine has too few GPUs for its ranks. Not collective.
void require_gpus(const Ranks& ranks);
// Sets this process's current device to cuda:local_rank. Collective with the first operation.
BackendPtr make_nccl(const BackendRequest& request);

// What lockstep_nccl exports, by these names. Results by reference: a C function gives back no C++
// class.
using RequireGpusFunction = void(const Ranks& ranks);
using MakeNcclFunction = void(const BackendRequest& request, BackendPtr& backend);
inline constexpr const char* kRequireGpusSymbol = "lockstep_nccl_require_gpus";
inline constexpr const char* kMakeNcclSymbol = "lockstep_nccl_make";

}  // namespace lockstep::detail
