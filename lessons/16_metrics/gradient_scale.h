// What the oracles of contrastive.cpp and logged_loss.cpp compare the ranks' gradient with: that of
// one process with the same weights on the whole global batch.
#pragma once

#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include <cstdint>

class GradientScale : public lockstep::Notes {
 public:
  // The ranks train an Mlp(784, 32, outputs). Step k is on the k-th `global_batch` samples.
  GradientScale(lockstep::RankContext& job, std::int64_t outputs, std::int64_t global_batch,
                int steps);

  void optimizer_made(torch::optim::Optimizer& optimizer) override;
  void update_begins(torch::optim::Optimizer& optimizer) override;

 private:
  virtual at::Tensor loss_of(lockstep::Mlp& model, const lockstep::TensorData& batch) = 0;

  std::int64_t outputs_, global_batch_;
  lockstep::TensorData data_;
  lockstep::Mlp one_process_{nullptr};
  std::int64_t step_ = 0;
};

lockstep::Measured gradient_scale(const lockstep::Outcomes& outcomes);
