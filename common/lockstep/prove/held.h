// What is remembered of a program that is proved: tensors, rows, and what an optimizer holds.
#pragma once

#include <lockstep/train/value.h>
#include <torch/optim/optimizer.h>

#include <set>
#include <string>
#include <vector>

namespace lockstep::prove {

using Tensors = std::vector<at::Tensor>;

// On the CPU; None for an undefined one.
Value copied(const at::Tensor& tensor);
Value::List copied_all(const Tensors& tensors);
// A number for each row, of all tensors that have as many rows as the first. Undefined where none has rows.
at::Tensor rows_of(const Tensors& inputs);
// {"digest": by parameter a number for each part of its state, "options": by group}.
Value::Dict state_of(torch::optim::Optimizer& optimizer);
// Functions in a loss's graph whose backward the program wrote itself.
void add_own_functions(const at::Tensor& root, std::set<std::string>& names);

}  // namespace lockstep::prove
