// How a rank's model and optimizer are set up, and what it is fed, as values that can be compared between ranks.
#pragma once

#include <lockstep/trace/event.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::record {

// A key for each submodule. Its value is its type; torch's and our own modules print their options, too:
// "torch::nn::Dropout(p=0.5, inplace=false)".
trace::Settings settings_of(const torch::nn::Module& module);

// Of each submodule that keeps a running mean and has a weight.
trace::LayerModes modes_of(const torch::nn::Module& module);

// Options of an optimizer that is not C++'s.
struct NamedOptions : torch::optim::OptimizerOptions {
  double lr = 0;
  std::map<std::string, std::string> settings;  // the class, and each option but the rate

  double get_lr() const override { return lr; }
  void set_lr(const double rate) override { lr = rate; }
  std::unique_ptr<OptimizerOptions> clone() const override {
    return std::make_unique<NamedOptions>(*this);
  }
};

// Of each parameter group the optimizer's type, and every option that it serializes but the learning rate, which each
// update records. A group goes by the name of its first parameter in the model, since ranks that share an optimizer may
// number theirs differently: "fc1.weight: weight_decay".
trace::Settings settings_of(const torch::optim::Optimizer& optimizer,
                            const std::vector<at::Tensor>& parameters,
                            const std::vector<std::string>& names);

// Of the CPU's generator, and of that of the device that the parameters are on.
trace::RandomState random_state(const std::vector<at::Tensor>& parameters);

// Shape, dtype and what its numbers are like; of more than 2^20 numbers, of evenly spaced ones. `index`: as
// trace::Input has it. Waits for its device.
trace::Input input_of(const at::Tensor& tensor, std::int64_t index);

// Settings of a loss may depend on its batch, such as weights of classes. Those that do not, are told once.
class SteadySettings {
 public:
  // Those that were now seen for the third time, always with one value.
  trace::Settings look(const std::map<std::string, std::string>& settings);

 private:
  struct Seen {
    std::string value;
    int times = 0;
    bool varies = false;
  };
  std::map<std::string, Seen> seen_;
};

}  // namespace lockstep::record
