// A small data-parallel job whose model has a BatchNorm, simulated: the ranks' batches have means, and what
// becomes of them depends on what the job does.
#pragma once

#include "job.h"

namespace lockstep::simulated {

// All ranks draw samples of their own before a step; those in `telling` tell a metric of all of them.
struct WholeEvaluation {
  std::vector<int> telling;
  std::function<bool(int rank)> training = [](int) { return false; };  // the model's mode
  bool through_engine = true;    // else nobody sees its forwards
  bool moves_statistics = true;  // in training mode; else the layer is not in it, or puts them back
  std::string phase = "evaluation";  // that the metric is told of
  bool of_training_data = false;
  int before = 2;
};

struct BatchNormJob {
  enum class Mean { of_all_values, of_ranks_means, of_own_values };
  enum class Equalize { never, every_forward, before_evaluation };

  int world_size = 2;
  int steps = 4;
  Ids counts;  // samples of each rank's batch; default: 8, the last rank 3
  Mean mean = Mean::of_all_values;
  Equalize equalize = Equalize::never;  // the ranks' buffers
  bool equal_start = true;              // of the buffers
  bool tells_layer = true;              // by its mode at the start
  bool frozen = false;                  // the running statistics stay as they are

  // Which mode a rank's forward of a step runs in.
  std::function<bool(int rank, int step)> training = [](int, int) { return true; };
  std::vector<int> look_before;  // steps before which rank 0 alone evaluates
  std::vector<int> evaluating;   // ranks that evaluate after the last step

  std::optional<WholeEvaluation> evaluation;
  bool collects_anew = false;  // training batches, without gradients, right before it

  int forwards = 1;                  // for one backward
  bool backward_in_between = false;  // each forward has its own
  int dies_in = -1;                  // a step, after its last forward

  bool reduces_layer = true;  // the engine holds the parameters of the BatchNorm

  explicit BatchNormJob(int ranks);
  trace::Trace run() const;
};

}  // namespace lockstep::simulated
