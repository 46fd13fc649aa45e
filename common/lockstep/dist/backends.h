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
  int device = 0;            // over NCCL: cuda:device
  std::vector<int> global;   // of a smaller group: its ranks in the world, in its order
};

// In a group's store, for groups made from it: "machine" where all ranks are on one, else "network".
inline constexpr const char* kReachKey = "lockstep/reach";

// The options as prepare_groups' function leaves them; and Observer::group of who listens.
InitOptions prepared(const InitOptions& given);
void tell_group(const char* action, const std::string& name, const std::vector<int>& ranks);

// Ranks of whom the store has no key. Throws what the store throws.
std::vector<int> absent_ranks(c10d::Store& store, int world_size,
                              const std::function<std::string(int rank)>& key_of);
std::string each_rank(const std::vector<int>& ranks);  // "rank 1, rank 3"

// Collective: every rank says in the store that it is there, and waits for the others. Throws
// std::runtime_error that names those that have not come within `timeout`, and then says `advice`.
void meet(c10d::Store& store, int rank, int world_size, std::chrono::milliseconds timeout,
          const std::string& advice = "");

// Collective over the group's ranks, blocking: a group of that name with its backend, whose ranks
// meet in `store`. What the rendezvous throws comes out, and says whom it did not see.
ProcessGroupPtr make_group(const InitOptions& options, const Ranks& ranks, bool loopback,
                           const StorePtr& store, const std::string& name);

struct BackendRequest {
  StorePtr store;
  Ranks ranks;
  bool loopback = true;  // all ranks are on this machine
  std::chrono::milliseconds timeout{};
  std::string name;  // the group's
  bool share_gpu = false;
  bool high_priority_stream = false;
};

// Collective, blocking.
BackendPtr make_gloo(const BackendRequest& request);

// Not collective. Loads lockstep_nccl once; throws UnavailableError where it cannot.
void load_nccl();
int nccl_version();  // as ncclGetVersion gives it, of the NCCL that is loaded then
// Not collective. Throws UsageError where torch was called before lockstep_nccl was loaded, and so has no CUDA.
void require_torch_with_cuda();
// Not collective. The GPU that this rank is to use, as its index. Throws UnavailableError when NCCL cannot work
// on this machine for its ranks.
int require_nccl(const InitOptions& options, const Ranks& ranks);
// Collective: as meet(); and where they are not to share GPUs, throws UnavailableError on every rank when two of
// them, whichever way they were started, have the same.
void meet_with_gpus(c10d::Store& store, const Ranks& ranks, const InitOptions& options);
// Sets in this process's environment what NCCL is to read there and the user has not set.
void set_nccl_environment(const BackendRequest& request);
// Collective, blocking: ready to communicate. Sets this process's current device to cuda:device.
BackendPtr make_nccl(const BackendRequest& request);

// What lockstep_nccl exports, by these names. Results by reference: a C function gives back no C++
// class.
using NcclVersionFunction = int();
using MakeNcclFunction = void(const BackendRequest& request, BackendPtr& backend);
inline constexpr const char* kNcclVersionSymbol = "lockstep_nccl_version";
inline constexpr const char* kMakeNcclSymbol = "lockstep_nccl_make";

}  // namespace lockstep::detail
