// The model of branches.cpp and two_losses.cpp: one trunk, two heads, and a loss for each.
#pragma once

#include <torch/torch.h>

#include <tuple>

// `type` tells the ten kinds of clothes apart; `shoe` tells shoes from the rest.
struct TwoHeadsImpl : torch::nn::Cloneable<TwoHeadsImpl> {
  TwoHeadsImpl();
  void reset() override;
  // Both heads' outputs. Without the shoe head, which is then unused, the second is undefined.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& inputs, bool with_shoe = true);

  torch::nn::Linear trunk{nullptr}, type{nullptr}, shoe{nullptr};
};
TORCH_MODULE(TwoHeads);

// Each sample's loss: [n].
at::Tensor type_losses(const at::Tensor& outputs, const at::Tensor& targets);
at::Tensor shoe_losses(const at::Tensor& outputs, const at::Tensor& targets);
