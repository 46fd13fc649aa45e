// Adam and AdamW that take Python's steps to the bit. LibTorch's own differ from the second step on.
#pragma once

#include <lockstep/observe/place.h>
#include <lockstep/train/value.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep {

// One parameter group's options, with Python's names and defaults. A group that has options of its own takes nothing
// from the optimizer's. In LibTorch 2.15's own optimizers it does, for each option that has its default value.
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
                const AdamOptions& defaults = {});
  explicit Adam(std::vector<at::Tensor> parameters, const AdamOptions& defaults = {})
      : Adam({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

  // Throws UsageError for options out of range or of another optimizer; the group is then not added.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  torch::Tensor step(LossClosure closure) override;
  torch::Tensor step(Place place = Place::here());  // without a closure
  void zero_grad(bool set_to_none = true);

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
// AdamOptions' setters, but what they return is still what AdamW takes.
#define LOCKSTEP_ADAMW_ARG(T, name)                  \
  using AdamOptions::name;                           \
  AdamWOptions& name(const T& value) {               \
    static_cast<AdamOptions&>(*this).name() = value; \
    return *this;                                    \
  }                                                  \
  AdamWOptions& name(T&& value) {                    \
    return name(std::as_const(value));               \
  }
  LOCKSTEP_ADAMW_ARG(double, lr)
  LOCKSTEP_ADAMW_ARG(betas_t, betas)
  LOCKSTEP_ADAMW_ARG(double, eps)
  LOCKSTEP_ADAMW_ARG(double, weight_decay)
  LOCKSTEP_ADAMW_ARG(bool, amsgrad)
  LOCKSTEP_ADAMW_ARG(bool, maximize)
#undef LOCKSTEP_ADAMW_ARG

 private:
  // A group's copy must stay AdamWOptions.
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<AdamWOptions>(*this);
  }
};

// Python's torch.optim.AdamW: Adam whose weight decay is decoupled, in every group, whatever is loaded.
// AdamOptions are not taken for AdamWOptions, because they decay nothing unless told to: as `defaults`
// they do not compile, as a group's they throw UsageError.
class AdamW : public Adam {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 AdamWOptions defaults = {});
  explicit AdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults = {})
      : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  // Throws UsageError for AdamOptions, too.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void decouple();
};

}  // namespace lockstep
