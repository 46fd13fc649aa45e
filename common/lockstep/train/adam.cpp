#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/adam.h>
#include <torch/torch.h>

#include <cmath>

namespace lockstep {
namespace {

void check(bool right, const char* what, double value) {
  if (!right)
    throw UsageError(std::string("Adam: ") + what + ", and it is " + std::to_string(value));
}

void check(const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas();
  check(options.lr() >= 0, "lr must not be negative", options.lr());
  check(options.eps() >= 0, "eps must not be negative", options.eps());
  check(beta1 >= 0 && beta1 < 1, "the first of betas must be in [0, 1)", beta1);
  check(beta2 >= 0 && beta2 < 1, "the second of betas must be in [0, 1)", beta2);
  check(options.weight_decay() >= 0, "weight_decay must not be negative", options.weight_decay());
}

const AdamOptions& options_of(const torch::optim::OptimizerParamGroup& group) {
  const auto* options = dynamic_cast<const AdamOptions*>(&group.options());
  if (options == nullptr)
    throw UsageError(
        "lockstep::Adam: a parameter group has options of another optimizer; give it "
        "lockstep::AdamOptions");
  return *options;
}

std::unique_ptr<AdamParamState> initial_state(const at::Tensor& parameter, bool amsgrad) {
  auto state = std::make_unique<AdamParamState>();
  const bool wide = c10::get_default_dtype_as_scalartype() == at::kDouble;
  state->step = at::zeros({}, wide ? at::kDouble : at::kFloat);
  const auto zeros = [&] { return at::zeros_like(parameter, {}, at::MemoryFormat::Preserve); };
  state->exp_avg = zeros();
  state->exp_avg_sq = zeros();
  if (amsgrad) state->max_exp_avg_sq = zeros();
  return state;
}

// torch/optim/adam.py, _single_tensor_adam. Numbers are doubles, as Python's are; pow(x, 0.5) is what
// Python computes and is not always sqrt(x).
void update(at::Tensor parameter, AdamParamState& state, const AdamOptions& options) {
  const auto [beta1, beta2] = options.betas();
  auto gradient = options.maximize() ? -parameter.grad() : parameter.grad();
  state.step += 1;
  if (options.weight_decay() != 0) {
    if (options.decoupled_weight_decay())
      parameter.mul_(1 - options.lr() * options.weight_decay());
    else
      gradient = gradient.add(parameter, options.weight_decay());
  }
  state.exp_avg.lerp_(gradient, 1 - beta1);
  state.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);

  const double step = state.step.item<double>();
  const double bias_correction1 = 1 - std::pow(beta1, step);
  const double bias_correction2 = 1 - std::pow(beta2, step);
  const double step_size = options.lr() / bias_correction1;
  const double bias_correction2_sqrt = std::pow(bias_correction2, 0.5);
  auto second = state.exp_avg_sq;
  if (options.amsgrad()) {
    at::maximum_out(state.max_exp_avg_sq, state.max_exp_avg_sq, state.exp_avg_sq);
    second = state.max_exp_avg_sq;
  }
  const auto denominator = (second.sqrt() / bias_correction2_sqrt).add_(options.eps());
  parameter.addcdiv_(state.exp_avg, denominator, -step_size);
}

// The names under which state_of, set_state and archives keep the tensors.
template <class State, class Visit>
void visit(State& state, Visit&& v) {
  v("step", state.step);
  v("exp_avg", state.exp_avg);
  v("exp_avg_sq", state.exp_avg_sq);
  v("max_exp_avg_sq", state.max_exp_avg_sq);
}

}  // namespace

Adam::Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const AdamOptions& defaults)
    // AdamOptions' own clone() is private.
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(),
                static_cast<const torch::optim::OptimizerOptions&>(defaults).clone()) {
  check(defaults);
  for (const auto& group : groups) add_param_group(group);
  tell([&](Observer& to) { to.optimizer_made(*this); });
}

void Adam::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  if (group.has_options()) check(options_of(group));
  Optimizer::add_param_group(group);
  // LibTorch 2.15 replaces options of a type that it does not know by the optimizer's.
  if (group.has_options()) param_groups_.back().set_options(group.options().clone());
}

torch::Tensor Adam::step(Place place) {
  tell_began("update", place);
  return step(LossClosure());
}

torch::Tensor Adam::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  tell([&](Observer& to) { to.update_begins(*this); });
  {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      const auto& options = options_of(group);
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        if (parameter.grad().is_sparse() || parameter.is_complex())
          throw Error(std::string("Adam does not take ") +
                      (parameter.is_complex() ? "complex parameters" : "sparse gradients") +
                      "; this parameter's shape is " + c10::str(parameter.sizes()));
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (!state) state = initial_state(parameter, options.amsgrad());
        update(parameter, static_cast<AdamParamState&>(*state), options);
      }
    }
  }
  tell([&](Observer& to) { to.update_ended(*this); });
  return loss;
}

void Adam::zero_grad(bool set_to_none) {
  tell([&](Observer& to) { to.zero_grad("optimizer"); });
  Optimizer::zero_grad(set_to_none);
}

Value::Dict Adam::state_of(const at::Tensor& parameter) const {
  Value::Dict named;
  const auto found = state_.find(parameter.unsafeGetTensorImpl());
  if (found != state_.end())
    visit(static_cast<const AdamParamState&>(*found->second),
          [&](const char* name, const at::Tensor& tensor) {
            if (tensor.defined()) named[name] = tensor;
          });
  return named;
}

void Adam::set_state(const at::Tensor& parameter, const Value::Dict& named) {
  auto state = std::make_unique<AdamParamState>();
  visit(*state, [&](const char* name, at::Tensor& tensor) {
    if (const auto* value = named.find(name)) tensor = value->as_tensor();
  });
  if (!state->step.defined() || !state->exp_avg.defined() || !state->exp_avg_sq.defined())
    throw Error("a state of Adam holds step, exp_avg and exp_avg_sq; one of them is missing");
  state_[parameter.unsafeGetTensorImpl()] = std::move(state);
}

void Adam::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdamParamState, AdamOptions>(archive, *this);
}

void Adam::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamParamState, AdamOptions>(archive, *this);
}

void AdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  visit(*this, [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) archive.write(name, tensor);
  });
}

void AdamParamState::serialize(torch::serialize::InputArchive& archive) {
  visit(*this, [&](const char* name, at::Tensor& tensor) { archive.try_read(name, tensor); });
}

void AdamOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(amsgrad);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(maximize);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(decoupled_weight_decay);
}

void AdamOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, amsgrad);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, maximize);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, decoupled_weight_decay);
}

namespace {

void check_decays(const torch::optim::OptimizerParamGroup& group) {
  if (group.has_options() && dynamic_cast<const AdamWOptions*>(&group.options()) == nullptr)
    throw UsageError(
        "lockstep::AdamW: a parameter group has AdamOptions, whose weight_decay is 0 unless it "
        "is set; give it lockstep::AdamWOptions");
}

}  // namespace

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions defaults)
    : Adam(groups, defaults.decoupled_weight_decay(true)) {
  for (const auto& group : groups) check_decays(group);
  decouple();
}

void AdamW::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  check_decays(group);
  Adam::add_param_group(group);
  decouple();
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  Adam::load(archive);
  decouple();  // Adam's archive says false
}

void AdamW::decouple() {
  for (auto& group : param_groups_)
    static_cast<AdamOptions&>(group.options()).decoupled_weight_decay(true);
}

}  // namespace lockstep
