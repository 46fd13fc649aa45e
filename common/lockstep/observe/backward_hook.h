// Sees every backward() of the process, whoever calls it, and which of them reach the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace lockstep {

// Is given the tensor that a backward() begins at, what it is multiplied by where the program says so, and whether its
// gradients are added to those of all leaves and have no graph of their own.
using BackwardHook = void (*)(const at::Tensor& root, const std::optional<at::Tensor>& weight,
                              bool whole);

// From now on `hook` is called before each backward() runs, on the calling thread. The first hook stays. It must not throw. LibTorch has no such hook; Tensor::backward() goes through an interface that
// may be replaced (ATen/core/VariableHooksInterface.h), and what is put there hands everything on.
void hook_backward(BackwardHook hook);

// Of a leaf's hook: whether what it is called for adds to the leaf's .grad. torch::autograd::grad gives it to its caller
// alone. True where no backward runs on this thread.
bool is_accumulated(const at::Tensor& leaf);

}  // namespace lockstep
