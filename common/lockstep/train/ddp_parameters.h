// What a module gives to the Reducer, in Python's order. Internal to train.
#pragma once

#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::detail {

// Detached; frozen parameters, too; each tensor once, modules in pre-order: as Python's named_parameters() and
// named_buffers().
std::vector<at::Tensor> all_parameters(const torch::nn::Module& module);
std::vector<at::Tensor> all_buffers(const torch::nn::Module& module);

// The parameters that require a gradient, each once, and whether each one's gradient is sparse.
struct ReducedParameters {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  std::vector<bool> sparse;

  std::unordered_map<std::size_t, std::string> names_by_index() const;
};
ReducedParameters reduced_parameters(const torch::nn::Module& module);

// Collective. Throws Error naming the first parameter that differs in shape or dtype between two
// ranks and what each has, CollectiveError when communication fails. Its collectives are those of
// Python's check; what the message needs beside them goes through the group's store, where Python
// ranks simply say nothing.
void verify_same_parameters(const ProcessGroupPtr& group, const ReducedParameters& reduced);

}  // namespace lockstep::detail
