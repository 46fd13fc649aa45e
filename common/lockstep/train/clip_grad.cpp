#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/clip_grad.h>

namespace lockstep {

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double norm_type, bool error_if_nonfinite) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients, norms;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  for (const auto& gradient : gradients)
    norms.push_back(at::linalg_vector_norm(gradient, norm_type));
  const auto norm =
      norms.empty() ? torch::zeros({}) : at::linalg_vector_norm(at::stack(norms), norm_type);
  if (error_if_nonfinite && !at::isfinite(norm).item<bool>())
    throw Error(
        "clip_grad_norm_: the norm of the gradients is not finite, so they cannot be clipped; "
        "leave the step out, or pass error_if_nonfinite = false");
  tell([&](Observer& to) { to.clip(max_norm, norm); });
  const auto factor = ((norm + 1e-6).reciprocal() * max_norm).clamp_max(1.0);
  for (auto& gradient : gradients) gradient.mul_(factor);
  return norm;
}

}  // namespace lockstep
