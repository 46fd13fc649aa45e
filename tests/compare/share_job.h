// A small job whose gradient is the mean over the samples of a global batch: any number of ranks trains the same.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstdint>
#include <functional>

namespace lockstep::compare {

struct ShareJob {
  int ranks = 1;
  std::int64_t updates = 40;
  std::int64_t global_batch = 8;
  double noise = 0;  // relative, of each sum over samples
  double lr = 0.01;
  // Whether values are recorded at a step; ids, losses and rates always are.
  std::function<bool(std::int64_t step)> probes = [](std::int64_t) { return true; };

  trace::Trace run() const;
};

}  // namespace lockstep::compare
