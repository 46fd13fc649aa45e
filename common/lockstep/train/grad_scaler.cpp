#include <ATen/autocast_mode.h>
#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/grad_scaler.h>

#include <vector>

namespace lockstep {
namespace {

void require(bool right, const std::string& what) {
  if (!right) throw UsageError("GradScaler: " + what);
}

// What is to be unscaled, by dtype: a sparse gradient's values, a dense one itself.
std::map<at::ScalarType, std::vector<at::Tensor>> gradients_of(torch::optim::Optimizer& optimizer,
                                                               const c10::Device& device) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (auto& group : optimizer.param_groups())
    for (auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      require(gradient.scalar_type() != at::kHalf,
              "a gradient is float16, and so is its parameter; keep parameters in float32, "
              "and compute in float16 under Autocast");
      require(gradient.device() == device, "a gradient is on " + gradient.device().str() +
                                               ", and the loss was scaled on " + device.str());
      by_dtype[gradient.scalar_type()].push_back(gradient.is_sparse() ? gradient._values()
                                                                      : gradient);
    }
  return by_dtype;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options, ProcessGroupPtr group)
    : options_(options), group_(std::move(group)), initial_scale_(options.init_scale) {
  if (!options_.enabled) return;
  require(options_.growth_factor > 1,
          "growth_factor must be over 1, and it is " + std::to_string(options_.growth_factor));
  require(options_.backoff_factor < 1,
          "backoff_factor must be under 1, and it is " + std::to_string(options_.backoff_factor));
}

void GradScaler::check_scaled(const char* call) const {
  require(scale_.defined(), std::string(call) +
                                " before the first scale(): call scale(loss), and "
                                "backward() on what it returns");
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) return outputs;
  if (!scale_.defined()) {
    const auto options = at::TensorOptions().device(outputs.device());
    scale_ = at::full({}, initial_scale_, options.dtype(at::kFloat));
    growth_tracker_ = at::full({}, initial_tracker_, options.dtype(at::kInt));
  }
  return outputs * scale_;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  check_scaled("unscale_()");
  const auto known = optimizers_.find(&optimizer);
  require(known == optimizers_.end() || !known->second.stepped,
          "unscale_() after step(); it belongs between backward() and step()");
  require(known == optimizers_.end(),
          "unscale_() a second time since the last update() divides the gradients twice");
  const torch::NoGradGuard no_grad;
  auto gradients = gradients_of(optimizer, scale_.device());
  const auto inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  auto found_inf = at::zeros({}, scale_.options());
  for (auto& [dtype, tensors] : gradients)
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_inf, inverse);
  if (group_) all_reduce(*group_, found_inf, c10d::ReduceOp::MAX);
  require(!gradients.empty(), "no parameter of the optimizer has a gradient");
  optimizers_[&optimizer].found_inf = found_inf;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, Place place) {
  tell_began("update", place);
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  check_scaled("step()");
  if (optimizers_.count(&optimizer) == 0) unscale_(optimizer);
  auto& state = optimizers_.at(&optimizer);
  require(!state.stepped, "step() a second time since the last update()");
  state.stepped = true;
  const bool updates = !found_nonfinite(optimizer);
  tell([&](Observer& to) { to.scaled_step(get_scale(), !updates, updates); });
  if (!updates) return false;
  optimizer.step();
  return true;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  check_scaled("update()");
  if (new_scale) {
    scale_.fill_(*new_scale);
  } else {
    require(!optimizers_.empty(), "update() without a step() since the last one");
    at::Tensor any;
    for (const auto& [optimizer, state] : optimizers_)
      any = any.defined() ? any + state.found_inf : state.found_inf;
    at::_amp_update_scale_(scale_, growth_tracker_, any, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
  }
  optimizers_.clear();
}

bool GradScaler::found_nonfinite(const torch::optim::Optimizer& optimizer) const {
  const auto state = optimizers_.find(&optimizer);
  return state != optimizers_.end() && state->second.found_inf.item<float>() != 0;
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? static_cast<double>(scale_.item<float>()) : initial_scale_;
}

Value GradScaler::state_dict() const {
  Value::Dict state;
  if (!options_.enabled) return state;
  state["scale"] = get_scale();
  state["growth_factor"] = options_.growth_factor;
  state["backoff_factor"] = options_.backoff_factor;
  state["growth_interval"] = options_.growth_interval;
  state["_growth_tracker"] =
      growth_tracker_.defined() ? std::int64_t{growth_tracker_.item<int>()} : initial_tracker_;
  return state;
}

void GradScaler::load_state_dict(const Value& state) {
  if (!options_.enabled) return;
  require(!state.as_dict().empty(),
          "the state is empty; was it saved from a scaler that was not enabled?");
  initial_scale_ = state.at("scale").as_double();
  initial_tracker_ = state.at("_growth_tracker").as_int();
  options_.growth_factor = state.at("growth_factor").as_double();
  options_.backoff_factor = state.at("backoff_factor").as_double();
  options_.growth_interval = state.at("growth_interval").as_int();
  if (!scale_.defined()) return;
  scale_.fill_(initial_scale_);
  growth_tracker_.fill_(initial_tracker_);
}

// torch/amp/autocast_mode.py, __enter__ and __exit__.
Autocast::Autocast(c10::DeviceType device, at::ScalarType dtype, bool enabled)
    : device_(device),
      enabled_before_(at::autocast::is_autocast_enabled(device)),
      dtype_before_(at::autocast::get_autocast_dtype(device)) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    throw UsageError(std::string("Autocast: the dtype must be float16 or bfloat16, and it is ") +
                     c10::toString(dtype));
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, dtype);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, enabled_before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

}  // namespace lockstep
