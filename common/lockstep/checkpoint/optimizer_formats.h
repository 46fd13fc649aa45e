// Which options and which state each optimizer has, under Python's names.
#pragma once

#include <lockstep/train/value.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace lockstep::checkpoint {

struct OptimizerFormat {
  const char* name;
  bool state_from_the_start;  // a parameter without state is an error

  Value::Dict (*options)(torch::optim::OptimizerOptions& options);
  // Sets the options that are there. Throws Error for a value of another kind or without a
  // counterpart.
  void (*load_options)(torch::optim::OptimizerOptions& options, const Value::Dict& from);

  Value::Dict (*state)(torch::optim::OptimizerParamState& state);
  // Throws Error for a tensor that does not fit the parameter.
  std::unique_ptr<torch::optim::OptimizerParamState> (*load_state)(const at::Tensor& parameter,
                                                                   const Value::Dict& from);
};

// Throws UnavailableError for an optimizer that has no format.
const OptimizerFormat& format_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
