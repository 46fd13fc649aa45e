// Turns what c10d throws into CollectiveError.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>

#include <exception>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

// Runs `call`, in which this rank enters (and waits for) a collective named `operation`. What it
// throws comes out as a CollectiveError with the rank, the operation, the group's sequence number
// and timeout; a CollectiveError as it is.
void collective_call(c10d::ProcessGroup& group, const std::string& operation,
                     const std::function<void()>& call);

// Blocks until `work`, an operation of `group`, is done. Throws what the backend throws, and failed_before()
// where NCCL has aborted the communicator for the sake of an operation before it: that ends this one too, with
// whatever was in its tensors, and wait() does not say so.
void finish(c10d::ProcessGroup& group, const c10::intrusive_ptr<c10d::Work>& work);

// Of an operation that nobody waited for, told by the one after it.
Error failed_before(c10d::ErrorType said);

// An exception's text without the stack trace that c10 adds. Inline: the Python package
// compiles the recorder without this folder.
inline std::string text_of(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
}

}  // namespace lockstep
