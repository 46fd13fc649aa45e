#include "gradients.h"

#include <algorithm>
#include <cmath>

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

double norm_of(const std::vector<at::Tensor>& gradients) {
  double sum_of_squares = 0;
  for (const auto& gradient : gradients)
    sum_of_squares += gradient.to(at::kDouble).square().sum().item<double>();
  return std::sqrt(sum_of_squares);
}

bool are_finite(const std::vector<at::Tensor>& gradients) {
  return std::all_of(gradients.begin(), gradients.end(), [](const at::Tensor& gradient) {
    return at::isfinite(gradient).all().item<bool>();
  });
}

void clip(const std::vector<at::Tensor>& gradients, double max_norm, double norm) {
  for (auto gradient : gradients) gradient *= std::min(1.0, max_norm / (norm + 1e-6));
}

void average(c10d::ProcessGroup& group, const std::vector<at::Tensor>& gradients) {
  for (auto gradient : gradients) {
    lockstep::all_reduce(group, gradient);
    gradient /= group.getSize();
  }
}

GlobalBatch global_batch(std::int64_t step, std::int64_t per_rank, int rank, int world_size) {
  GlobalBatch batch;
  for (std::int64_t i = 0; i < per_rank * world_size; ++i) {
    batch.everyone.push_back(step * per_rank * world_size + i);
    if (i % world_size == rank) batch.mine.push_back(batch.everyone.back());
  }
  return batch;
}
