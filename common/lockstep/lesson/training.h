// The training step of lessons that teach something else. Lessons 01 to 03 write it out.
#pragma once

#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <cstdint>
#include <vector>

namespace lockstep {

// An MLP (784-hidden-10) under DDP, trained by SGD with a rate of 0.01 on data in memory. Collective as DDP is.
class Trainer {
 public:
  Trainer(RankContext& context, TensorData data, std::int64_t hidden = 32);

  void step(const std::vector<std::int64_t>& positions);  // one update on these samples
  void step(const TensorData& batch);                     // that were taken out already

  Mlp& module() { return module_; }

 private:
  RankContext& context_;
  TensorData data_;
  Mlp module_;
  DistributedDataParallel<Mlp> ddp_;
  SGD optimizer_;
};

// The mean loss of each epoch, had one process trained a Trainer's model from the same seed: its k-th batch holds the ids
// of every rank's k-th batch, as the ranks' outcomes tell them. Empty where an outcome tells no ids, where ranks took
// different numbers of steps, or where an id is not in the training set.
std::vector<double> one_process_losses(const Outcomes& outcomes, std::uint64_t seed);

}  // namespace lockstep
