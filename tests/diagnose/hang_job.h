// A job of which each rank does what its script says, and in which collectives block: all ranks complete
// one where all are at the same; else those that are at one give it up, and nobody gets further. An Update ends a step.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::simulated {

using Script = std::vector<trace::Payload>;

// A call without its number, which play() gives it.
trace::Collective call(const std::string& op, std::int64_t size);

struct HangJob {
  std::vector<Script> scripts;  // by rank
  bool give_up = true;          // false: those that wait do so for ever
  std::int64_t patience_ns = 2'000'000'000;
  int late = -1;  // this rank comes when the others have given up

  explicit HangJob(int world_size) : scripts(static_cast<std::size_t>(world_size)) {}
  // Adds to every rank's script.
  HangJob& all(const trace::Payload& what);
  // Adds to one rank's.
  HangJob& only(int rank, const trace::Payload& what);

  trace::Trace play() const;
};

// How a rank ended, behind all other events.
void end(trace::Trace& trace, int rank, const std::string& how, int signal = 0,
         bool collective = false);

}  // namespace lockstep::simulated
