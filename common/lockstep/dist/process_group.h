// The process group: how the ranks of a job find each other and talk. Python's init_process_group
// for C++.
#pragma once

#include <lockstep/observe/place.h>

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace lockstep {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How a rank came to the TCP store of a rendezvous: it serves it, or connects to it (under torchrun, whose
// agent serves it, every rank connects).
struct StoreOpening {
  bool serves = false;
  // Numeric: where it listens ("0.0.0.0" is every interface), or the first that it may have connected to.
  std::string address;
  int port = 0;
  // errno's number, 0 = none: EADDRINUSE, EHOSTUNREACH where the name has no address, ETIMEDOUT where
  // nobody answered, or not all ranks came, in time; else EIO.
  int error = 0;
};

struct InitOptions {
  std::string backend = "gloo";  // "gloo" or "nccl"
  // "env://"           MASTER_ADDR and MASTER_PORT, set by torchrun, or by you for srun and mpirun; or
  //                    LOCKSTEP_STORE, where our launcher has set it
  // "file:///path"     a file that all ranks can reach, absent or empty before
  // "tcp://host:port"  rank 0 listens there
  //
  // A single rank (world_size 1) needs none of them. One group per rendezvous: another needs
  // another file, port or job.
  std::string init_method = "env://";
  int rank = -1;        // -1: from the environment (launch::placement_from_environment), or 0 of 1
  int world_size = -1;  // likewise
  // Likewise; NCCL's device is cuda:local_rank, set before the group exists. Given here, it is a device
  // of this process's own (a CUDA_VISIBLE_DEVICES a rank): nothing is asked about the other ranks'.
  int local_rank = -1;
  std::chrono::milliseconds timeout{60'000};  // of the rendezvous, and of every operation
  // Puts something around the backend before the group gets it, as record::observe and record::check
  // do. The store is one that the group's ranks share, for what is put there to use.
  std::function<BackendPtr(BackendPtr, const StorePtr&)> decorate = {};
  // NCCL only. The ranks of this machine may be more than its GPUs, which NCCL itself refuses: the
  // device is cuda:(local_rank modulo GPUs), and all talk through sockets. Results are right, speed is
  // not; rank 0 says so on stderr.
  bool share_gpu = false;
  // NCCL only, as in Python's ProcessGroupNCCL.Options: its kernels go before those of other streams.
  bool high_priority_stream = false;
  // Told once of the TCP store, when all ranks have come to it or it has failed; must not throw. Of a
  // file, and of a rank that is alone, nothing is told.
  std::function<void(const StoreOpening&)> on_store = {};
};

// Not collective. Loads what the backend needs ("gloo" needs nothing; "nccl" the library
// lockstep_nccl, and with it torch_cuda). Call it first in main where "nccl" may be asked for: a
// program that has called torch before torch_cuda is there (torch::manual_seed is enough) has no
// CUDA for the rest of its life: UsageError, here and from init_process_group. Throws
// UnavailableError where the library is missing or cannot be loaded, UsageError for another name.
void load_backend(const std::string& backend);

// Not collective. From now on `prepare` sees the options of every group before it is made, and may change them: how
// lockstep::record comes into a program that does not name it. Null: nobody.
using PrepareGroup = void (*)(InitOptions& options);
void prepare_groups(PrepareGroup prepare);

// Collective; blocks until all ranks are there, at most `timeout`. Stores, prefixes and names are
// Python's: C++ and Python ranks can share a job over Gloo. Throws UsageError for a malformed method,
// UnavailableError when "nccl" cannot work here (before anything starts: gpu/require_nccl.h; and when
// the ranks have met and two of them have the same GPU), Error for a store that cannot be opened,
// CollectiveError naming the method and the ranks that have not come, when the rendezvous fails.
//
// NCCL. What of it PyTorch reads from the environment is set where the caller has not set it
// (gpu/nccl_environment.cpp: what and why): an operation that fails, or takes longer than `timeout`, is
// aborted and never ends the process. Of an operation that nobody waits for on the host, as DDP's, the
// error comes out of the next one, or of destroy_process_group: what was computed from its result in
// between is not to be used. On one machine the ranks find each other on 127.0.0.1, unless
// NCCL_SOCKET_IFNAME is set.
//
// Sockets. A launcher's ranks are on one machine unless it says LOCAL_WORLD_SIZE < WORLD_SIZE; of
// ranks that the caller numbers, a file or a host of 127.0.0.1, ::1 or localhost says it. On one
// machine Gloo is on 127.0.0.1, and rank 0's TCP store listens at one local address that its host
// stands for (a loopback one where it has any). On several machines, or where GLOO_SOCKET_IFNAME
// names an interface other than lo, the store listens on every interface, as it does when its host
// is no address of this machine; rank 0 then warns on stderr, since c10d's store has no authentication:
// whoever reaches its port can read and change what is in it. Keep it inside a network that you trust.
// With Gloo the process ignores SIGPIPE from then on, unless it has a handler for it.
//
// Restarts. torchrun's agents keep one store for all attempts of a job: with --max-restarts the ranks
// agree on a fresh part of it first. Python's do not; for a job with ranks of both kinds set
// TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun, which gives every attempt a store of its own.
ProcessGroupPtr init_process_group(const InitOptions& options = {}, Place place = Place::here());

// Collective over all ranks of `parent`, which init_process_group made: also those that will be no
// members must call it, in the same order as the others. A group of `ranks` (of the parent; their order
// is their rank in it), or null on a rank that is not among them. Backend, timeout, decorate and what
// is NCCL's count. Named "1", "2", ... in the order of the calls. Blocks until all ranks have
// come, at most `timeout`; then throws CollectiveError, which names those that have not. Throws
// UsageError for another parent, and for ranks that the parent does not have or that are named twice.
ProcessGroupPtr new_group(const ProcessGroupPtr& parent, const std::vector<int>& ranks,
                          const InitOptions& options = {}, Place place = Place::here());

// Not collective. Lets go of the group, and empties the pointer; an empty one is left alone. NCCL
// is shut down for every holder of the group: the operations under way are waited for, at most their
// timeout, and the connections closed. Where an operation has failed it throws CollectiveError once
// that is done, except inside of a catch block, or while an exception is on its way: who called knows.
// Gloo has nothing to shut down: its connections close when the last holder (a
// DistributedDataParallel is one) lets go, and whoever does waits until the operations under way
// have ended or timed out. Call it on the way out, after the last collective. There should be one:
// a rank that leaves while others still connect makes their init_process_group fail.
void destroy_process_group(ProcessGroupPtr& group);

// The device a rank of this group trains on: cpu for gloo, for nccl the rank's GPU, whichever
// thread asks. (Of an NCCL group that init_process_group did not make: the device that it is bound
// to, else the calling thread's current one.)
c10::Device device_of(const c10d::ProcessGroup& group);

// Collectives that block until they are over, on NCCL too, where the device is waited for. Each
// throws CollectiveError when it fails or times out; a group over NCCL is of no use then. All ranks
// must call them in the same order with the same shapes and dtypes.
void all_reduce(c10d::ProcessGroup& group, at::Tensor& tensor,
                c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM, Place place = Place::here());
void broadcast(c10d::ProcessGroup& group, at::Tensor& tensor, int root = 0,
               Place place = Place::here());
// One tensor per rank, in rank order.
std::vector<at::Tensor> all_gather(c10d::ProcessGroup& group, const at::Tensor& tensor,
                                   Place place = Place::here());
void barrier(c10d::ProcessGroup& group, Place place = Place::here());

}  // namespace lockstep
