// What state_dict() returns: base/value.h's value with torch's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/base/value.h>

namespace lockstep {

// For example {"lr", 0.1}, {"betas", Value::Tuple{{0.9, 0.999}}}, {"exp_avg", tensor}. A tensor is
// held as at::Tensor is: a copy of the value shares its memory.
using Value = ValueOf<at::Tensor>;

}  // namespace lockstep
