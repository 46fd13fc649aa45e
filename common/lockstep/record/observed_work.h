// When an operation is over, as its Work tells it.
#pragma once

#include <lockstep/record/failed_collective.h>
#include <lockstep/trace/writer.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace lockstep::record {

// The records of operations that end together: one, or those of a coalesced group.
struct Entered {
  std::shared_ptr<trace::Writer> writer;
  std::vector<std::uint64_t> handles;
  // What failed, where they fail: of a coalesced group, its last operation.
  FailedCollective operation;

  void done() const;
  void failed(const std::exception_ptr& error) const;  // null where no exception is known
};

// How a Work tells that it is done.
enum class Completion {
  future,  // getFuture() completes with the work: Gloo's collectives
  // getFutureResult() does; NCCL's getFuture() completes when the work is handed to the device.
  future_result,
  wait,  // only to who waits: Gloo's send and recv have no future, and a few of its collectives
};

// Completes the records when `work` is done. Returns the work to hand on: the same, or for
// Completion::wait, and where the work has no such future, one around it, which behaves like it and
// records when wait() returns, or isCompleted() first says so, or nobody holds the work any more. A
// null work, which NCCL returns for an operation that is already on the caller's stream, is done.
c10::intrusive_ptr<c10d::Work> leave_when_done(c10::intrusive_ptr<c10d::Work> work, Entered entered,
                                               Completion completion);

}  // namespace lockstep::record
