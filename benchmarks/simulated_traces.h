// The traces of a data-parallel job that never ran: what a real one of that size records, through the
// real writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::benchmark {

enum class Fault {
  none,
  learning_rate,  // one rank updates with twice the others' rate
  death,          // one rank is ended by a signal, and the others' next all-reduce fails
  no_reduction,   // every rank goes by its own gradient: all replicas differ
};

struct SimulatedJob {
  int ranks = 8;
  int steps = 100;  // of two passes over the train data, an evaluation after each
  Fault fault = Fault::none;

  int odd_rank() const { return ranks / 3; }
  int death_step() const { return steps * 3 / 5; }
};

// Writes every rank's file, and the launcher's, into an empty folder. All ranks' files are open at once and
// grow step by step, so that times are as in a job; it needs that many descriptors.
void write_traces(const std::filesystem::path& folder, const SimulatedJob& job);

}  // namespace lockstep::benchmark
