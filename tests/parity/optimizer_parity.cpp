// Reads one optimizer's options a line (adam|adamw steps seed double amsgrad maximize groups, then lr beta1
// beta2 eps weight_decay of each group) and writes its parameters, at some of the steps, and at the end its
// state, as little-endian float64. optimizer_parity.py compares them with Python's.
#include <lockstep/launch/guarded.h>
#include <lockstep/train/adam.h>
#include <torch/torch.h>

#include <exception>
#include <iostream>
#include <memory>
#include <sstream>

#include "write.h"

namespace {

void write(const at::Tensor& tensor) {
  lockstep::parity::write(std::cout, tensor.to(at::kDouble));
}

struct Case {
  std::string kind;
  int steps = 0, groups = 0;
  std::uint64_t seed = 0;
  bool wide = false, amsgrad = false, maximize = false;
  std::vector<lockstep::AdamWOptions> options;  // every field is set, so Adam takes them as well
};

Case read(const std::string& line) {
  Case c;
  std::istringstream in(line);
  in >> c.kind >> c.steps >> c.seed >> c.wide >> c.amsgrad >> c.maximize >> c.groups;
  for (int i = 0; i < c.groups; ++i) {
    double lr, beta1, beta2, eps, weight_decay;
    in >> lr >> beta1 >> beta2 >> eps >> weight_decay;
    c.options.push_back(lockstep::AdamWOptions(lr)
                            .betas({beta1, beta2})
                            .eps(eps)
                            .weight_decay(weight_decay)
                            .amsgrad(c.amsgrad)
                            .maximize(c.maximize));
  }
  if (!in) throw std::runtime_error("not a case: " + line);
  return c;
}

std::unique_ptr<lockstep::Adam> make(const Case& c, const std::vector<at::Tensor>& parameters) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (std::size_t i = 0; i < c.options.size(); ++i) {
    auto options = std::make_unique<lockstep::AdamWOptions>(c.options[i]);
    options->decoupled_weight_decay(c.kind == "adamw");
    groups.emplace_back(std::vector<at::Tensor>{parameters[2 * i], parameters[2 * i + 1]},
                        std::move(options));
  }
  if (c.kind == "adamw") return std::make_unique<lockstep::AdamW>(groups);
  return std::make_unique<lockstep::Adam>(groups);
}

void answer(const Case& c) {
  torch::manual_seed(c.seed);
  const auto dtype = c.wide ? at::kDouble : at::kFloat;
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < c.groups; ++i) {
    parameters.push_back(torch::randn({7, 5}, dtype).set_requires_grad(true));
    parameters.push_back(torch::randn({33}, dtype).set_requires_grad(true));
  }
  auto optimizer = make(c, parameters);
  for (int step = 1; step <= c.steps; ++step) {
    optimizer->zero_grad();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::NoGradGuard no_grad;
      const auto noise = torch::randn(parameters[i].sizes(), dtype);
      if (i == 1 && step % 3 == 2) continue;  // no gradient in this step
      parameters[i].mutable_grad() = noise + parameters[i] * 0.1;
    }
    optimizer->step();
    if (step == c.steps / 2) {  // go on with a new optimizer and the old one's state
      auto next = make(c, parameters);
      for (const auto& parameter : parameters)
        next->set_state(parameter, optimizer->state_of(parameter));
      optimizer = std::move(next);
    }
    if (step < 4 || step % 50 == 0)
      for (const auto& parameter : parameters) write(parameter);
  }
  for (const auto& parameter : parameters)
    for (const auto& [name, tensor] : optimizer->state_of(parameter)) write(tensor.as_tensor());
}

}  // namespace

int main() {
  return lockstep::launch::guarded([&] {
    for (std::string line; std::getline(std::cin, line);) answer(read(line));
  });
}
