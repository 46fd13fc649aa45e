// Sees every backward() of the process, whoever calls it, and which of them reach the parameters.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::record {

// From now on `hook` is called with the tensor that a backward() begins at, before it runs, on the calling thread. The
// first hook stays. It must not throw. LibTorch has no such hook; Tensor::backward() goes through an interface that
// may be replaced (ATen/core/VariableHooksInterface.h), and what is put there hands everything on.
void hook_backward(void (*hook)(const at::Tensor& root));

// Of a leaf's hook: whether what it is called for adds to the leaf's .grad. torch::autograd::grad gives it to its caller
// alone. True where no backward runs on this thread.
bool is_accumulated(const at::Tensor& leaf);

}  // namespace lockstep::record
