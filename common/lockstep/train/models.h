// The models of the articles, and the small ones the tests compare with Python's.
#pragma once

#include <torch/torch.h>

namespace lockstep {

// Parameter names and, from the same torch::manual_seed, initial values equal those of a Python
// module whose __init__ makes the same layers in the order they are listed here. Both can be
// cloned.

// Linear(in, hidden) - ReLU - Linear(hidden, out). Names: fc1, fc2. The articles' MLP is
// Mlp(784, 256, 10).
class MlpImpl : public torch::nn::Cloneable<MlpImpl> {
 public:
  MlpImpl(std::int64_t in, std::int64_t hidden, std::int64_t out);
  void reset() override;  // makes the layers anew
  torch::Tensor forward(const torch::Tensor& inputs);

  torch::nn::Linear fc1{nullptr}, fc2{nullptr};

 private:
  std::int64_t in_, hidden_, out_;
};
TORCH_MODULE(Mlp);

// Conv(1,8,3,pad 1) - BatchNorm - ReLU - MaxPool 2 - Conv(8,16,3,pad 1) - BatchNorm - ReLU -
// MaxPool 2 - Linear(784, out). Input [N, 784] or [N, 1, 28, 28]. Names: conv1, bn1, conv2, bn2,
// fc.
class ConvNetImpl : public torch::nn::Cloneable<ConvNetImpl> {
 public:
  explicit ConvNetImpl(std::int64_t out);
  void reset() override;  // makes the layers anew
  torch::Tensor forward(const torch::Tensor& inputs);

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Linear fc{nullptr};

 private:
  std::int64_t out_;
};
TORCH_MODULE(ConvNet);

}  // namespace lockstep
