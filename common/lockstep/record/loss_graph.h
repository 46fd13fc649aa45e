// What the graph that led to a loss tells of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::record {

struct LossGraph {
  // For each of its terms, in their order: 32 for the mean of 32 numbers, 0.5 for what was multiplied by 2. A term ends
  // at the first sum or mean over several numbers, or at an operation that is not known here. Only factors without a
  // gradient count.
  std::vector<double> divisors;
  // What torch's own losses below the terms compare with.
  std::vector<at::Tensor> targets;
  // What these losses were made with, by name: "ignore_index of term 1". Of a tensor its first numbers.
  std::map<std::string, std::string> settings;
};

constexpr std::size_t kMostGraphNodes = 1 << 14;  // that are looked at

// `loss` is a single number. May wait for a device. Empty where the graph has been freed, or where there are more than 16
// terms.
LossGraph look_at_graph(const at::Tensor& loss);

// What lies at the other end of a loss's graph.
struct GraphEnds {
  std::vector<at::Tensor> leaves;  // that a backward gives gradients to, but for a layer's rows
  // What the first operations were given beside them, in the graph's order: a layer's rows, an embedding's places.
  std::vector<at::Tensor> inputs;
};

// As far as `most` operations lead there, and empty where the graph has been freed.
GraphEnds ends_of(const at::Tensor& loss, std::size_t most);

// Whether the loss was computed from what this operation gave; of the first `most` operations.
bool leads_to(const at::Tensor& loss, const torch::autograd::Node* operation, std::size_t most);

}  // namespace lockstep::record
