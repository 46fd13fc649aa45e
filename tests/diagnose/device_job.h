// One process that drives several devices, simulated: DataParallel's steps on vectors of a few numbers.
#pragma once

#include "job.h"

namespace lockstep::simulated {

struct DeviceJob {
  int devices = 2;
  std::vector<Ids> batches;   // per step, the sizes of the parts; fewer than devices are allowed
  bool weighted = true;       // parts weigh by their samples
  bool dies_in_last = false;  // no update in the last step

  bool has_buffers = false;
  bool training = true;
  bool first_runs_a_copy = false;  // whose buffers are dropped

  enum class Reduction { unseen, gather, ring } reduction = Reduction::unseen;

  explicit DeviceJob(int count);  // four steps; parts of 4 samples, the last one of 2 in odd steps
  trace::Trace run() const;
};

}  // namespace lockstep::simulated
