#include "gradients.h"

#include <lockstep/observe/observer.h>

#include <algorithm>
#include <cmath>

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
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
  const auto told = torch::tensor(norm, at::kDouble);
  lockstep::tell([&](lockstep::Observer& to) { to.clip(max_norm, told); });
  for (auto gradient : gradients) gradient *= std::min(1.0, max_norm / (norm + 1e-6));
}

void average(c10d::ProcessGroup& group, const std::vector<at::Tensor>& gradients) {
  for (auto gradient : gradients) {
    lockstep::all_reduce(group, gradient);
    gradient /= group.getSize();
  }
}

void tell_scaled_step(double scale, bool found_nonfinite, bool updates) {
  lockstep::tell([&](lockstep::Observer& to) { to.scaled_step(scale, found_nonfinite, updates); });
}
