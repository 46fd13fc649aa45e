#include "two_heads.h"

TwoHeadsImpl::TwoHeadsImpl() {
  TwoHeadsImpl::reset();
}

void TwoHeadsImpl::reset() {
  trunk = register_module("trunk", torch::nn::Linear(784, 64));
  type = register_module("type", torch::nn::Linear(64, 10));
  shoe = register_module("shoe", torch::nn::Linear(64, 2));
}

std::tuple<at::Tensor, at::Tensor> TwoHeadsImpl::forward(const at::Tensor& inputs, bool with_shoe) {
  const auto hidden = torch::relu(trunk->forward(inputs));
  return {type->forward(hidden), with_shoe ? shoe->forward(hidden) : at::Tensor()};
}

at::Tensor type_losses(const at::Tensor& outputs, const at::Tensor& targets) {
  return torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
}

at::Tensor shoe_losses(const at::Tensor& outputs, const at::Tensor& targets) {
  // sandal 5, sneaker 7, boot 9
  const auto is_shoe = (targets == 5).logical_or(targets == 7).logical_or(targets == 9);
  return torch::cross_entropy_loss(outputs, is_shoe.to(at::kLong), {}, at::Reduction::None);
}
