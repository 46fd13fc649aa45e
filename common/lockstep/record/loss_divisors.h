// What a loss was divided by, read off the graph that led to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::record {

// Of each term of `loss`, a single number, in their order: 32 where it is the mean of 32 numbers, 0.5 where it was
// multiplied by 2. A term begins where numbers are summed, or where the graph holds something that is not known here.
// Only numbers without a gradient count. It may wait for a device. Empty where the graph no longer holds them, or where
// there are more than 16 terms.
std::vector<double> divisors_of(const at::Tensor& loss);

}  // namespace lockstep::record
