// Sees every backward() of the process, whoever calls it.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::record {

// From now on `hook` is called with the tensor that a backward() begins at, before it runs, on the calling thread. The
// first hook stays. It must not throw. LibTorch has no such hook; Tensor::backward() goes through an interface that
// may be replaced (ATen/core/VariableHooksInterface.h), and what is put there hands everything on.
void hook_backward(void (*hook)(const at::Tensor& root));

}  // namespace lockstep::record
