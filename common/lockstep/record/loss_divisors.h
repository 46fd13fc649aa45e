// What a loss was divided by, read off the graph that led to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::record {

// `loss` is a single number. For each of its terms, in their order: 32 for the mean of 32 numbers, 0.5 for what was
// multiplied by 2. A term ends at the first sum or mean over several numbers, or at an operation that is not known here.
// Only factors without a gradient count. May wait for a device. Empty where the graph has been freed, or where there are
// more than 16 terms.
std::vector<double> divisors_of(const at::Tensor& loss);

}  // namespace lockstep::record
