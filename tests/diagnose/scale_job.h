// A job of many ranks that records all that a real one does, healthy or with one fault.
#pragma once

#include <filesystem>

#include "job.h"

namespace lockstep::simulated {

enum class Fault {
  none,
  learning_rate,  // one rank updates with twice the others' rate
  death,          // one rank is ended by a signal, and the others' next all-reduce fails
  unequal_start,  // no two ranks begin with equal parameters
  no_reduction,   // every rank goes by its own gradient: all replicas differ
};
inline constexpr int kOddRank = 7;  // the one at fault

struct ScaleJob {
  int ranks = 8;
  int steps = 100;  // of two passes over the train data, an evaluation after each
  Fault fault = Fault::none;
  std::int64_t batch = 32;
  int layers = 4;

  trace::Trace run() const;
};

// Writes every rank's file, and the launcher's, into an empty folder. All ranks' files are open at once and grow event
// by event, so that times are as in a job; it needs that many descriptors.
void write_traces(const std::filesystem::path& folder, const trace::Trace& trace);

}  // namespace lockstep::simulated
