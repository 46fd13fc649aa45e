// What an optimizer moves.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace lockstep {

// The parameters of all groups, in order. (LibTorch's own parameters() gives the first group's.)
inline std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

}  // namespace lockstep
