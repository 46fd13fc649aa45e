#include "stand_ins.h"

#include <lockstep/record/settings.h>

#include <stdexcept>

namespace lockstep::python {
namespace {

using torch::nn::Module;

// The submodule that holds what has this name, made where there is none, and the last part of the name.
std::pair<Module*, std::string> holder_of(Module& root, const std::string& name) {
  Module* holder = &root;
  std::size_t begin = 0;
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
    const auto part = name.substr(begin, dot - begin);
    auto children = holder->named_children();
    holder = children.contains(part)
                 ? children[part].get()
                 : holder->register_module(part, std::make_shared<Module>(part)).get();
    begin = dot + 1;
  }
  return {holder, name.substr(begin)};
}

struct PythonOptimizer : torch::optim::Optimizer {
  using Optimizer::Optimizer;
  at::Tensor step(LossClosure) override { throw std::logic_error("Python's optimizer steps"); }
};

}  // namespace

std::shared_ptr<Module> stand_in_for(const NamedTensors& parameters, const NamedTensors& buffers) {
  auto root = std::make_shared<Module>("model");
  for (const auto& [name, tensor] : parameters) {
    const auto [holder, last] = holder_of(*root, name);
    holder->register_parameter(last, tensor, tensor.requires_grad());
  }
  for (const auto& [name, tensor] : buffers) {
    const auto [holder, last] = holder_of(*root, name);
    holder->register_buffer(last, tensor);
  }
  return root;
}

std::shared_ptr<torch::optim::Optimizer> stand_in_for(const std::vector<Group>& groups) {
  std::vector<torch::optim::OptimizerParamGroup> param_groups;
  for (const auto& [parameters, lr, settings] : groups) {
    auto options = std::make_unique<record::NamedOptions>();
    options->lr = lr;
    options->settings = settings;
    param_groups.emplace_back(parameters, std::move(options));
  }
  return std::make_shared<PythonOptimizer>(param_groups, std::make_unique<record::NamedOptions>());
}

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  for (std::size_t i = 0; i < std::min(rates.size(), optimizer.param_groups().size()); ++i)
    optimizer.param_groups()[i].options().set_lr(rates[i]);
}

}  // namespace lockstep::python
