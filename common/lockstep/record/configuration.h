// How a rank's model and optimizer are set up, as keys and values that can be compared between ranks.
#pragma once

#include <lockstep/trace/event.h>
#include <torch/torch.h>

namespace lockstep::record {

// A key for each submodule, with the text that it prints of itself: torch's own modules print their options, such as
// "torch::nn::Dropout(p=0.5, inplace=false)".
trace::Configuration configuration_of(const torch::nn::Module& module);

// Of "statistics": the mode, "train" or "eval", of each submodule that keeps a running mean and has a weight. Its key
// says their places in Buffers and Model: "buffer 0, parameter 2".
trace::Configuration modes_of(const torch::nn::Module& module);

// "type", and of each parameter group every option that it serializes but the learning rate, which each update records:
// "group 0.weight_decay".
trace::Configuration configuration_of(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::record
