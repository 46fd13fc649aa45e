// torch.nn.utils.clip_grad_norm_ to the last bit. LibTorch's own divides max_norm by the norm where Python
// multiplies it with the norm's reciprocal, which is not always the same number. Its clip_grad_value_ is
// Python's.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace lockstep {

// Multiplies the gradients with min(1, max_norm / (norm + 1e-6)), where norm is that of all of them as one
// vector, and returns it. Not collective: clip reduced gradients, which are alike on all ranks. Gradients of
// one dtype and device; parameters without one are passed over. Throws Error where the norm is not finite
// and `error_if_nonfinite`; else NaN reaches all gradients.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double norm_type = 2, bool error_if_nonfinite = false);

}  // namespace lockstep
