#include "models.h"

namespace lockstep::benchmark {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
}

// As Python's nn.Linear does. LibTorch's own multiplies and then adds the bias where the input has three dimensions: a
// kernel more, and under autocast a rounding more.
torch::Tensor through(const nn::Linear& layer, const torch::Tensor& x) {
  return torch::linear(x, layer->weight, layer->bias);
}

constexpr std::int64_t kExpansion = 4;

struct BottleneckImpl : nn::Module {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1(convolution(in, width, 1, 1, 0)),
        bn1(width),
        conv2(convolution(width, width, 3, stride, 1)),
        bn2(width),
        conv3(convolution(width, width * kExpansion, 1, 1, 0)),
        bn3(width * kExpansion) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    register_module("conv3", conv3);
    register_module("bn3", bn3);
    if (stride == 1 && in == width * kExpansion) return;
    downsample = nn::Sequential(convolution(in, width * kExpansion, 1, stride, 0),
                                nn::BatchNorm2d(width * kExpansion));
    register_module("downsample", downsample);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y)).relu_();
    y = bn3(conv3(y));
    y += downsample ? downsample->forward(x) : x;
    return y.relu_();
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t width, std::int64_t heads_)
      : ln_1(nn::LayerNormOptions({width})),
        c_attn(width, 3 * width),
        c_proj(width, width),
        ln_2(nn::LayerNormOptions({width})),
        c_fc(width, 4 * width),
        c_out(4 * width, width),
        heads(heads_) {
    register_module("ln_1", ln_1);
    register_module("c_attn", c_attn);
    register_module("c_proj", c_proj);
    register_module("ln_2", ln_2);
    register_module("c_fc", c_fc);
    register_module("c_out", c_out);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto n = x.size(0), t = x.size(1), width = x.size(2);
    const auto parts =
        through(c_attn, ln_1(x)).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                        /*is_causal=*/true);
    x = x + through(c_proj, mixed.transpose(1, 2).reshape({n, t, width}));
    return x + through(c_out, torch::gelu(through(c_fc, ln_2(x)), "tanh"));
  }
  nn::LayerNorm ln_1;
  nn::Linear c_attn, c_proj;
  nn::LayerNorm ln_2;
  nn::Linear c_fc, c_out;
  std::int64_t heads;
};
TORCH_MODULE(Block);

}  // namespace

ResNetImpl::ResNetImpl(const std::vector<std::int64_t>& blocks, std::int64_t width)
    : conv1(convolution(3, width, 7, 2, 3)), bn1(width) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  std::int64_t channels = width;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage)
    for (std::int64_t block = 0; block < blocks[stage]; ++block) {
      const auto its_width = width << stage;
      stages_->push_back(Bottleneck(channels, its_width, stage > 0 && block == 0 ? 2 : 1));
      channels = its_width * kExpansion;
    }
  register_module("stages", stages_);
  fc = register_module("fc", nn::Linear(channels, 1'000));
}

torch::Tensor ResNetImpl::forward(torch::Tensor images) {
  images = bn1(conv1(images)).relu_();
  images = torch::max_pool2d(images, 3, 2, 1);
  images = stages_->forward(images);
  return fc(images.mean({2, 3}));
}

GptImpl::GptImpl(const GptSize& size)
    : wte(size.vocabulary, size.width), wpe(size.context, size.width) {
  register_module("wte", wte);
  register_module("wpe", wpe);
  for (std::int64_t layer = 0; layer < size.layers; ++layer)
    blocks_->push_back(Block(size.width, size.heads));
  register_module("blocks", blocks_);
  ln_f = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({size.width})));
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  const auto positions = torch::arange(tokens.size(1), tokens.options());
  auto x = wte(tokens) + wpe(positions);
  x = ln_f(blocks_->forward(x));
  return torch::linear(x, wte->weight);
}

}  // namespace lockstep::benchmark
