// What an optimizer moves, and how to remember it.
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

// A program's tensor that its program may free. No later one gets its address.
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
inline WeakTensor weak_of(const at::Tensor& tensor) {
  return WeakTensor(tensor.getIntrusivePtr());
}

}  // namespace lockstep
