#include <lockstep/observe/observer.h>
#include <lockstep/train/loss.h>
#include <torch/torch.h>

namespace lockstep {

at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets, Place place) {
  return tell_loss(torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None), outputs,
                   targets, place);
}

at::Tensor tell_loss(at::Tensor per_sample, const at::Tensor& outputs, const at::Tensor& targets,
                     Place place) {
  if (torch::GradMode::is_enabled()) {
    tell_began("backward", place);
    tell([&](Observer& to) { to.loss(per_sample, outputs, targets); });
  }
  return per_sample;
}

}  // namespace lockstep
