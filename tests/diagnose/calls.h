// What a program tells by a call of its own: which calls a pitfall's page says that it needs, and a trace without one.
#pragma once

#include <lockstep/trace/reader.h>

#include <set>
#include <string>
#include <vector>

namespace lockstep::simulated {

// The page's line "calls:"; empty for "none".
std::set<std::string> calls_of_page(const std::string& slug);

// Those whose events nothing else records.
std::vector<std::string> calls_that_a_trace_tells();
trace::Trace without_call(trace::Trace trace, const std::string& call);

}  // namespace lockstep::simulated
