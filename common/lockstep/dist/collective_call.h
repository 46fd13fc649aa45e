// Turns what c10d throws into CollectiveError.
#pragma once

#include <lockstep/dist/process_group.h>

#include <exception>
#include <functional>
#include <string>

namespace lockstep {

// Runs `call`, in which this rank enters (and waits for) a collective named `operation`. What it
// throws comes out as a CollectiveError with the rank, the operation, the group's sequence number
// and timeout; a CollectiveError as it is.
void collective_call(c10d::ProcessGroup& group, const std::string& operation,
                     const std::function<void()>& call);

// An exception's text without the stack trace that c10 adds.
std::string text_of(const std::exception& error);

}  // namespace lockstep
