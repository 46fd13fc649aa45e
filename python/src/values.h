// What Python's objects hold, as the recorder hashes it.
#pragma once

#include <lockstep/base/value.h>
#include <pybind11/pybind11.h>
#include <torch/torch.h>

namespace lockstep::python {

// None for what is no bool, int, float, str, list, tuple, dict or tensor, and for a tensor that is made of others. Tensors
// are not copied. A dict's keys go by what they print.
ValueOf<at::Tensor> value_of(const pybind11::handle& object);

}  // namespace lockstep::python
