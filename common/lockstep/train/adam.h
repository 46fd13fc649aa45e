// Adam and AdamW that take Python's steps to the bit. LibTorch's own differ from the second step on.
#pragma once

#include <lockstep/train/value.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <memory>
#include <tuple>
#include <vector>

namespace lockstep {

// One parameter group's options, with Python's names and defaults. As with every LibTorch optimizer,
// a group that is given options of its own takes nothing from the optimizer's.
struct AdamOptions : public torch::optim::OptimizerCloneableOptions<AdamOptions> {
  AdamOptions(double lr = 1e-3) : lr_(lr) {}
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, amsgrad) = false;
  TORCH_ARG(bool, maximize) = false;
  TORCH_ARG(bool, decoupled_weight_decay) = false;  // true makes it AdamW

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double new_lr) override { lr(new_lr); }
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// What Adam keeps of one parameter, from its first step on.
struct AdamParamState : public torch::optim::OptimizerCloneableParamState<AdamParamState> {
  at::Tensor step;            // updates so far: a float scalar on the CPU, as in Python
  at::Tensor exp_avg;         // like the parameter
  at::Tensor exp_avg_sq;      // like the parameter
  at::Tensor max_exp_avg_sq;  // like the parameter; undefined without amsgrad

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// Python's torch.optim.Adam in its single-tensor form, operation for operation: Python's default on
// the CPU. On CUDA Python defaults to foreach=True, which may round differently.
//
// Not collective. Throws UsageError for options out of range, Error for a sparse gradient or a
// complex parameter. A parameter without a gradient is passed over, and its step does not count.
class Adam : public torch::optim::Optimizer {
 public:
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                AdamOptions defaults = {});
  explicit Adam(std::vector<at::Tensor> parameters, AdamOptions defaults = {})
      : Adam({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  torch::Tensor step(LossClosure closure = nullptr) override;

  // For checkpoints: a parameter's state under Python's names ("step", "exp_avg", "exp_avg_sq",
  // "max_exp_avg_sq" where there is one), sharing memory with this optimizer; empty before its first
  // step. set_state takes the tensors over as they are: shapes and devices are the caller's matter.
  Value::Dict state_of(const at::Tensor& parameter) const;
  void set_state(const at::Tensor& parameter, const Value::Dict& state);

  // torch::save and torch::load.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

// AdamOptions with AdamW's defaults: a decoupled weight decay of 0.01.
struct AdamWOptions : public AdamOptions {
  AdamWOptions(double lr = 1e-3) : AdamOptions(lr) {
    weight_decay(1e-2).decoupled_weight_decay(true);
  }
};

// Python's torch.optim.AdamW: Adam whose weight decay is decoupled, in every group.
class AdamW : public Adam {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 AdamOptions defaults = AdamWOptions());
  explicit AdamW(std::vector<at::Tensor> parameters, AdamOptions defaults = AdamWOptions())
      : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
};

}  // namespace lockstep
