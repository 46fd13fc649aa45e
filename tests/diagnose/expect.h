// What a diagnosis must hold, whatever the order of the ranks' files and whatever things are called.
#pragma once

#include <lockstep/diagnose/diagnose.h>

#include <string>
#include <vector>

namespace lockstep::simulated {

std::vector<int> all_ranks(int world_size);
// Whom a finding names where this rank does not do as the others: of two ranks, both.
std::vector<int> odd_one_out(int world_size, int rank);

// Exactly one finding: this one. `step` < -1 leaves the step open.
void expect_only(const trace::Trace& trace, const std::string& slug, const std::vector<int>& ranks,
                 std::int64_t step, diagnose::Severity severity = diagnose::Severity::violation);
void expect_nothing(const trace::Trace& trace);

std::string evidence(const trace::Trace& trace);  // of the first finding

diagnose::State state(const trace::Trace& trace, const std::string& slug);

// As if every rank had been killed, rank r after `length` + r events.
trace::Trace cut_at(trace::Trace trace, std::size_t length);

// The trace without the events of kind T.
template <class T>
trace::Trace without(trace::Trace trace) {
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) { return event.is<T>(); });
  return trace;
}

}  // namespace lockstep::simulated
