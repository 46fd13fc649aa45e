// Checks each collective before it runs: do all ranks call the same?
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace lockstep::record {

struct CheckOptions {
  // How long a rank waits for the others to call the same operation, where the call itself has no
  // timeout. 0: as long as the backend lets an operation take.
  std::chrono::milliseconds timeout{0};
};

// The ranks called different things. Thrown on every rank that takes part, before any data moves.
class CollectiveMismatch : public CollectiveError {
 public:
  CollectiveMismatch(int rank, const std::string& operation, std::int64_t sequence,
                     std::chrono::milliseconds timeout, const std::string& cause,
                     std::vector<int> ranks);
  std::vector<int> ranks;  // the strict minority; all that differ where there is none
};

// Ranks did not come to an operation in time. Thrown on every rank that did.
class RanksMissing : public CollectiveError {
 public:
  RanksMissing(int rank, const std::string& operation, std::int64_t sequence,
               std::chrono::milliseconds timeout, const std::string& cause, std::vector<int> ranks);
  std::vector<int> ranks;
};

// Decorates a backend: forwards everything, and lets the ranks compare each collective before it
// starts: operation, reduce op, root, dtypes, shapes, group, the parts of each rank (alltoall,
// allgather, gather, scatter, reduce_scatter), and the sums of the splits.
//
// Collective, blocks; all ranks of the backend. `store`: one that all of them reach, with keys that
// nothing else uses (a PrefixStore of the group's own, say); its server must outlast the backend.
// Errors name a rank by its number in the group. Hand the result to a process group as its backend:
//
//   options.decorate = [&](BackendPtr backend, const StorePtr&) {
//     return record::observe(record::check(std::move(backend), store), writer);
//   };
//
// With observe() around it, as here, what is refused or waited for is in the trace too. A group of
// one rank is handed back as it is. Groups made from this one (split, merge, shrink) are checked.
//
// How: the fingerprints go through a Gloo group of their own, on the CPU, whatever the backend is;
// the store serves to connect it and, once somebody waits, to tell who is where. So a collective
// costs one small all-gather over Gloo, two where the parts of the ranks differ in size. (The store
// alone would be simpler, but a FileStore, which one machine uses, polls every 10 ms.)
//
// A collective thereby starts when all ranks have called it, asynchronous ones too. Ranks that use
// two groups in different orders, or that start a collective before a send which a peer receives
// before it calls that collective, may be right without the check; with it they wait for each other
// until the timeout.
//
// After a CollectiveMismatch of a collective the group is as it was: nothing was started. After
// RanksMissing, and after a mismatch of send and recv, every later operation throws CollectiveError.
//
// send, recv, recvAnysource: over Gloo the two sides compare dtype and size before any data moves,
// in a thread of the operation's own: the call returns at once, wait() throws. A rank that waits for
// a tag that nobody sends is told so by RanksMissing, with both sides; the timeout counts from the
// call, as for a send that nobody receives. Tags must be below 2^30. Over other backends they pass unchecked.
//
// Throws UnavailableError, naming them, where ranks do not call check() within the timeout, and
// UsageError for a store that has served another group.
BackendPtr check(BackendPtr backend, StorePtr store, const CheckOptions& options = {});

}  // namespace lockstep::record
