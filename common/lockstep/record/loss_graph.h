// What the graph that led to a loss tells of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <string>
#include <unordered_set>
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

// Of these operations those that the loss was computed from, of the first `most` that are nearest to it.
using Operations = std::unordered_set<const torch::autograd::Node*>;
Operations led_to(const at::Tensor& loss, const Operations& operations, std::size_t most);

// What led to a value, which its graph may free. A node is held by a shared_ptr; from torch 2.13 on by an intrusive_ptr.
template <class T>
std::weak_ptr<T> weak_node(const std::shared_ptr<T>& node) {
  return node;
}
template <class T>
c10::weak_intrusive_ptr<T> weak_node(const c10::intrusive_ptr<T>& node) {
  return c10::weak_intrusive_ptr<T>(node);
}
using WeakNode = decltype(weak_node(std::declval<const at::Tensor&>().grad_fn()));

// Of the loss without its factors: of `loss / 4` and `loss * scale` what led to `loss`.
WeakNode below_factors(const at::Tensor& loss);

}  // namespace lockstep::record
