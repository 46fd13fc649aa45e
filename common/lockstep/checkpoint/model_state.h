// A model's state_dict: its parameters and buffers under Python's names.
#pragma once

#include <lockstep/train/value.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace lockstep {

// In Python's order: a module's parameters, its buffers, then its children's. The tensors share the
// model's memory, without its gradients. Of a model wrapped in DistributedDataParallel, take the
// module inside: state_dict(*model.module()).
Value state_dict(const torch::nn::Module& model);

// What does not fit between a model and a state_dict.
struct IncompatibleKeys {
  std::vector<std::string> missing;     // the model has it, the state_dict does not
  std::vector<std::string> unexpected;  // the other way round
  std::vector<std::string> mismatched;  // "fc.weight: [10, 4] saved, [10, 5] in the model"

  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

struct LoadStateOptions {
  bool strict = true;
};

// Copies the state into the model's tensors, which stay on their devices and keep their types.
// Strict: throws Error that lists everything that does not fit, before anything is changed. Not
// strict: copies what fits and returns the rest. (Python's throws on a size that differs either way.)
// What is no tensor where one belongs always throws.
IncompatibleKeys load_state_dict(torch::nn::Module& model, const Value& state,
                                 const LoadStateOptions& options = {});

}  // namespace lockstep
