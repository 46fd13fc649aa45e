// A small job on a gradient engine, simulated: it counts gradients as c10d's Reducer does, and stops where
// that stops. A test changes what the program does, never what is recorded about it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "job.h"

namespace lockstep::simulated {

// One backward, and the forward before it. The model has three parameters, of 4, 3 and 2 elements.
struct Part {
  std::vector<int> reaches{0, 1, 2};  // parameters, in the order their gradients come
  std::int64_t samples = 4;
  double share = 1;           // the loss it starts from, over the mean loss of its samples
  bool no_sync = false;       // around forward and backward
  bool told_late = false;     // no_sync begins after forward
  bool clears = false;        // the gradients, before its backward
  bool same_samples = false;  // as the last part's
  bool same_forward = false;  // as the last part's, and so the same samples
};
using Parts = std::vector<Part>;

// `count` parts whose losses are divided by `count`; all but the last in no_sync.
Parts accumulated(int count);

struct EngineJob {
  int world_size = 2;
  int steps = 4;
  int recorded_steps = 1'000'000;  // with losses, arrivals and values
  std::function<Parts(int rank, int step)> parts = [](int, int) { return Parts{Part{}}; };
  double gradients_times = 1;  // before the update, by the program

  bool find_unused = false;
  bool bypasses_wrapper = false;
  int buckets = 1;         // all-reduces of a reduction
  bool logs_loss = false;  // an all-reduce of one number after each backward
  // Parameters from `first` on are frozen (thawed: were frozen until then) before or after wrapping.
  int frozen_from = 3;
  int frozen_at_wrapping_from = 3;

  std::function<double(int step)> lr = [](int) { return 0.1; };
  std::function<bool(int rank, int step)> optimizer_moves_model = [](int, int) { return true; };
  std::string zero_grad = "module";  // "optimizer" stops at views
  bool views = false;

  explicit EngineJob(int ranks) : world_size(ranks) {}
  trace::Trace run() const;
};

}  // namespace lockstep::simulated
