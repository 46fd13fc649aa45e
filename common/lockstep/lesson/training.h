// The training step of lessons that teach something else. Lessons 01 to 03 write it out.
#pragma once

#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <cstdint>
#include <vector>

namespace lockstep {

// Article D's MLP under DDP with SGD 0.01 on in-memory data. Collective as DDP is.
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

// The same, which tells the probes what it does. For lessons that tell by hand.
class TracedTrainer {
 public:
  TracedTrainer(RankContext& context, TensorData data, std::int64_t hidden = 32);

  // One update on the samples at `positions`; `ids` are their global ids where they differ from
  // positions.
  void step(const std::vector<std::int64_t>& positions);
  void step(const std::vector<std::int64_t>& positions, const std::vector<std::int64_t>& ids);
  // One update on a batch that is no part of the data as it is; `ids` are its samples'.
  void step(const TensorData& batch, const std::vector<std::int64_t>& ids);

  // Around the steps of one epoch: tells the probes, and writes the epoch's loss and ids to the
  // outcome.
  void begin_epoch(std::int64_t epoch);
  void end_epoch();

  Mlp& module() { return module_; }

 private:
  void draw(const std::vector<std::int64_t>& ids);  // writes them down, before they are fetched
  void update(const TensorData& batch);

  RankContext& context_;
  TensorData data_;
  Mlp module_;
  DistributedDataParallel<Mlp> ddp_;
  torch::optim::SGD optimizer_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_ = 0;
  Mean loss_, accuracy_;
  std::vector<std::int64_t> drawn_;
};

// What one process loses, by epoch: a Trainer's model from the same seed, whose k-th batch is all ranks' k-th together.
// Of the ids that the ranks' Trainers wrote to their outcomes, in the training set. Empty where there are none, where
// the ranks took different numbers of steps, or where a batch was no part of that set as it is.
std::vector<double> one_process_losses(const Outcomes& outcomes, std::uint64_t seed);

}  // namespace lockstep
