#include <lockstep/train/models.h>

namespace lockstep {

MlpImpl::MlpImpl(std::int64_t in, std::int64_t hidden, std::int64_t out)
    : in_(in), hidden_(hidden), out_(out) {
  MlpImpl::reset();
}

void MlpImpl::reset() {
  fc1 = register_module("fc1", torch::nn::Linear(in_, hidden_));
  fc2 = register_module("fc2", torch::nn::Linear(hidden_, out_));
}

torch::Tensor MlpImpl::forward(const torch::Tensor& inputs) {
  return fc2->forward(torch::relu(fc1->forward(inputs)));
}

ConvNetImpl::ConvNetImpl(std::int64_t out) : out_(out) {
  ConvNetImpl::reset();
}

void ConvNetImpl::reset() {
  using torch::nn::Conv2dOptions;
  conv1 = register_module("conv1", torch::nn::Conv2d(Conv2dOptions(1, 8, 3).padding(1)));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(8));
  conv2 = register_module("conv2", torch::nn::Conv2d(Conv2dOptions(8, 16, 3).padding(1)));
  bn2 = register_module("bn2", torch::nn::BatchNorm2d(16));
  fc = register_module("fc", torch::nn::Linear(16 * 7 * 7, out_));
}

torch::Tensor ConvNetImpl::forward(const torch::Tensor& inputs) {
  auto x = inputs.reshape({-1, 1, 28, 28});
  x = torch::max_pool2d(torch::relu(bn1->forward(conv1->forward(x))), 2);
  x = torch::max_pool2d(torch::relu(bn2->forward(conv2->forward(x))), 2);
  return fc->forward(x.flatten(1));
}

}  // namespace lockstep
