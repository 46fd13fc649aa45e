// Which tensors have numbers that a recorder can read.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::record {

// Whoever reads a value of the program's asks this first, and leaves out what has none: a tensor without memory (meta,
// fake, or freed by an engine), of a transform's (vmap), of a class of Python's or of several tensors, of a type that
// torch does not convert; and one of more than 2^28 numbers that has memory for fewer, such as zeros(1).expand(n).
bool is_readable(const at::Tensor& tensor);

// Without what is there several times, since it was expanded: its numbers have the same mean, least and greatest.
at::Tensor without_repeats(const at::Tensor& tensor, std::int64_t first_dimension = 0);

}  // namespace lockstep::record
