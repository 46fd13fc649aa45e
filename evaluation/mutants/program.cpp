#include "program.h"

#include <ATen/autocast_mode.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>

namespace lockstep::mutants {
namespace {

// For any 2, 3, 4 or 6 ranks: as many training samples for each; of the others not.
constexpr std::int64_t kTrain = 192, kTest = 101;
constexpr std::int64_t kContext = 3;  // letters before the one that is guessed

// Every letter of a text that Debian brings, after the three before it, one-hot.
TensorData letters(Split split) {
  const auto text = read_file(LOCKSTEP_MUTANTS_TEXT);
  const std::int64_t first = split == Split::train ? 0 : kTrain + kContext;
  const std::int64_t n = split == Split::train ? kTrain : kTest;
  if (static_cast<std::int64_t>(text.size()) < first + n + kContext)
    throw Error(std::string(LOCKSTEP_MUTANTS_TEXT) + " is too short to learn letters from");
  const auto code = [&](std::int64_t at) {
    return static_cast<std::int64_t>(text[static_cast<std::size_t>(at)]) & 31;
  };
  TensorData data{torch::zeros({n, kContext * 32}), torch::zeros({n}, torch::kInt64)};
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t k = 0; k < kContext; ++k) data.inputs[i][k * 32 + code(first + i + k)] = 1;
    data.targets[i] = code(first + i + kContext);
  }
  return data;
}

template <class Options>
std::unique_ptr<torch::optim::Optimizer> with_decay(const std::vector<at::Tensor>& parameters,
                                                    Options options, double decay) {
  options.weight_decay(decay);
  if constexpr (std::is_same_v<Options, torch::optim::SGDOptions>)
    return std::make_unique<torch::optim::SGD>(parameters, options);
  else if constexpr (std::is_same_v<Options, torch::optim::AdamOptions>)
    return std::make_unique<torch::optim::Adam>(parameters, options);
  else
    return std::make_unique<torch::optim::AdamW>(parameters, options);
}

}  // namespace

NetImpl::NetImpl(std::int64_t in, std::int64_t hidden, std::int64_t out, const Settings& settings)
    : dropout_(settings.dropout),
      low_precision_(settings.low_precision),
      first_(register_module(settings.prefix + "first", torch::nn::Linear(in, hidden))),
      second_(register_module(settings.prefix + "second", torch::nn::Linear(hidden, out))) {}

torch::Tensor NetImpl::forward(const torch::Tensor& inputs) {
  at::autocast::set_autocast_enabled(at::kCPU, low_precision_);
  auto hidden = torch::tanh(first_(inputs));
  if (dropout_ > 0) hidden = torch::dropout(hidden, dropout_, is_training());
  auto outputs = second_(hidden);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  return outputs.to(torch::kFloat32);
}

TensorData Program::data(Split split) const {
  if (name == "letters") return letters(split);
  auto data = fashion_mnist(split, split == Split::train ? kTrain : kTest);
  if (!classifies) data.targets = data.inputs;
  return data;
}

Net Program::make_model() const {
  if (name == "letters") return Net(kContext * 32, 24, 32, settings);
  return classifies ? Net(784, 32, 10, settings) : Net(784, 12, 784, settings);
}

torch::Tensor Program::losses(const torch::Tensor& outputs, const TensorData& batch) const {
  if (classifies) return torch::cross_entropy_loss(outputs, batch.targets, {}, at::Reduction::None);
  return (outputs - batch.targets).pow(2).mean(1);
}

double Program::score(const torch::Tensor& outputs, const TensorData& batch) const {
  if (classifies) return (outputs.argmax(1) == batch.targets).sum().item<double>();
  return losses(outputs, batch).sum().item<double>();
}

std::unique_ptr<torch::optim::Optimizer> Program::make_optimizer(
    const std::vector<at::Tensor>& parameters) const {
  const auto& s = settings;
  if (s.optimizer == "adam")
    return with_decay(parameters, torch::optim::AdamOptions(s.lr), s.weight_decay);
  if (s.optimizer == "adamw")
    return with_decay(parameters, torch::optim::AdamWOptions(s.lr), s.weight_decay);
  return with_decay(parameters,
                    torch::optim::SGDOptions(s.lr).momentum(s.optimizer == "momentum" ? 0.9 : 0),
                    s.weight_decay);
}

std::vector<Program> programs() {
  Settings pictures{.optimizer = "momentum", .noise = 0.05};
  Settings letters{.optimizer = "adamw",
                   .lr = 0.01,
                   .weight_decay = 0.01,
                   .max_norm = 0.1,
                   .batch = 8,
                   .microbatches = 2};
  Settings codes{.optimizer = "sgd", .lr = 0.5};
  return {{"pictures", Engine::ddp, pictures},
          {"letters", Engine::by_hand, letters},
          {"codes", Engine::sharded, codes, false}};
}

}  // namespace lockstep::mutants
