// Which collective an exception comes from.
//
// What fails inside DistributedDataParallel's backward comes out as the backend's own exception,
// and does not say that it is one. An observed backend (record::observe) sees every operation fail,
// and keeps what it saw here, for the whole process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

namespace lockstep::record {

struct FailedCollective {
  int rank = 0;
  std::string group;           // as the trace names it
  std::string operation;       // as c10d::Backend names it
  std::int64_t sequence = 0;   // from 1 in each group; send and recv count apart
  std::int64_t failed_ns = 0;  // monotonic_ns()
};

// The collective whose failure is this very exception object, as std::current_exception() gives it
// in a handler, however many threads it was handed through; nothing for any other exception, and
// for a copy. Of the last 64 failures. Not collective; any thread. Where collectives are under way
// it may take 0.25 s: a backend hands an error to those who wait for it before it tells the
// observer.
std::optional<FailedCollective> failed_collective_of(const std::exception_ptr& error);

// The latest one to fail in this process, seen by whichever thread; nothing where none did. An
// error that follows need not come from it: a program may have caught the failure and gone on.
std::optional<FailedCollective> last_failed_collective();

// For the observed backend: each operation that is entered ends in one of the other two. `error` is
// null where only the fact is known.
void note_entered();
void note_done(std::size_t operations);
void note_failed(std::size_t operations, FailedCollective failed, std::exception_ptr error);

}  // namespace lockstep::record
