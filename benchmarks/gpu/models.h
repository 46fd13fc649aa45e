// The models whose training steps are timed against Python's: models.py is their twin, layer for layer in the same order,
// so that the same torch::manual_seed gives both the same weights and one step the same loss.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

namespace lockstep::benchmark {

// ResNet-50 (He et al. 2016, with the stride in the 3x3 convolution, as torchvision has it): 25.6 M parameters at
// width 64. Input [N, 3, S, S], output [N, 1000].
class ResNetImpl : public torch::nn::Module {
 public:
  // `blocks` of each of the four stages; `width` channels in the first.
  ResNetImpl(const std::vector<std::int64_t>& blocks, std::int64_t width);
  torch::Tensor forward(torch::Tensor images);

 private:
  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::Sequential stages_;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ResNet);

// GPT-2's smallest (Radford et al. 2019): 12 layers of 768, 12 heads, 50,257 tokens, the output layer tied to the
// embedding: 124 M parameters. No dropout. Input int64 [N, T] with T <= context, output [N, T, vocabulary].
struct GptSize {
  std::int64_t layers = 12, heads = 12, width = 768, vocabulary = 50'257, context = 1'024;
};
class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptSize& size);
  torch::Tensor forward(const torch::Tensor& tokens);

 private:
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm ln_f{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace lockstep::benchmark
