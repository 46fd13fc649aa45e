// What the recorder knows of a model and an optimizer, of Python's: the same tensors under the same names, in C++ objects
// that compute nothing.
#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::python {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// `parameters` and `buffers` as named_parameters() and named_buffers() give them, "encoder.0.weight".
std::shared_ptr<torch::nn::Module> stand_in_for(const NamedTensors& parameters,
                                                const NamedTensors& buffers);

// Of each group the parameters, the rate, and the class and each option but the rate.
using Group = std::tuple<std::vector<at::Tensor>, double, std::map<std::string, std::string>>;
std::shared_ptr<torch::optim::Optimizer> stand_in_for(const std::vector<Group>& groups);
// One for each group.
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

}  // namespace lockstep::python
