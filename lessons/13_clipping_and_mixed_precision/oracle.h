// The oracles' reference: one process's gradient of a global batch, with the ranks' weights.
#pragma once

#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>

#include <cstdint>
#include <vector>

class OneProcessGradient {
 public:
  OneProcessGradient(const lockstep::RankContext& context, lockstep::Mlp model,
                     std::int64_t batch_size, int steps)
      : model_(std::move(model)),
        batch_size_(batch_size),
        data_(lockstep::fashion_mnist_or_synthetic(lockstep::Split::train, batch_size * steps)) {
    model_->to(context.device());
  }

  // Flat float64. `parameters` are a rank's, before it updates them.
  at::Tensor operator()(std::int64_t step, const std::vector<at::Tensor>& parameters) {
    lockstep::copy_parameters(parameters, model_->parameters());
    const auto ids = lockstep::global_batch(step, batch_size_);
    return lockstep::gradient_of_batch(model_, lockstep::rows_of(data_, ids));
  }

 private:
  lockstep::Mlp model_;
  std::int64_t batch_size_;
  lockstep::TensorData data_;
};
