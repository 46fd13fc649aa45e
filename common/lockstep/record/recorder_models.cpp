// Which model is recorded.
#include <lockstep/observe/parameters_of.h>
#include <lockstep/record/held_parameters.h>
#include <lockstep/record/recorder.h>

#include <algorithm>
#include <utility>

namespace lockstep::record {
namespace {

// The probes keep the tensors, so no address is used twice.
std::vector<std::pair<const void*, bool>> addresses_of(const torch::nn::Module& module) {
  std::vector<std::pair<const void*, bool>> parameters;
  for (const auto& parameter : module.parameters())
    parameters.emplace_back(parameter.unsafeGetTensorImpl(), parameter.requires_grad());
  return parameters;
}

}  // namespace

bool Recorder::watches(const torch::nn::Module& module) const {
  return wrapped_.lock().get() == &module;
}

void Recorder::watch(torch::nn::Module& module) {
  wrapped_ = module.weak_from_this();
  parameters_ = addresses_of(module);
  of_model_.clear();
  for (const auto& [address, trained] : parameters_) of_model_.insert(address);
  has_model_ = true;
  probes_.attach(module);
}

void Recorder::watch_another(torch::nn::Module& module) {
  watch(module);
  const auto held = alive(of_optimizers_);
  model_has_optimizer_ =
      std::any_of(held.begin(), held.end(), [&](const auto& each) { return is_of_model(each); });
}

void Recorder::wrapping(torch::nn::Module& module) {
  hear([&] {
    if (watches(module)) return watch(module);
    if (wrapped_.expired()) return watch_another(module);
    const auto step = writer_->step();
    if (next_.module.expired() || next_.step != step) next_ = {module.weak_from_this(), "", step};
  });
}

void Recorder::wrapped(torch::nn::Module& module, const std::string& engine) {
  hear([&] {
    if (watches(module)) return probes_.engine(engine);
    if (next_.module.lock().get() == &module) next_.engine = engine;
  });
}

void Recorder::watch_if_next(torch::nn::Module& module) {
  const auto step = writer_->step();
  if (step <= 0 || next_.step != step || next_.module.lock().get() != &module) return;
  watch_another(module);
  probes_.engine(next_.engine);
}

bool Recorder::parameters_changed(const torch::nn::Module& module) const {
  return probes_.looks_at_values() && addresses_of(module) != parameters_;
}

// The recorded model may be given noise, and the data go into another one.
void Recorder::given_to_another(torch::nn::Module& module, const std::vector<at::Tensor>& inputs) {
  if (!started_ || !module.is_training() || !torch::GradMode::is_enabled()) return;
  const auto weak = module.weak_from_this();
  const auto is_it = [&](const auto& other) { return other.lock() == weak.lock(); };
  auto found = std::find_if(others_.begin(), others_.end(), is_it);
  if (found == others_.end()) found = others_.insert(found, weak);
  probes_.inputs(inputs, 1 + (found - others_.begin()));
}

void Recorder::find_model() {
  if (has_model_ || of_optimizers_.empty()) return;
  attach_optimizers_from(0);
  has_model_ = true;
}

void Recorder::attach_optimizers_from(std::size_t first) {
  const auto parameters = alive(c10::ArrayRef<WeakTensor>(of_optimizers_).slice(first));
  known_.clear();
  for (const auto& parameter : parameters) known_.insert(parameter.unsafeGetTensorImpl());
  looked_at_ = of_optimizers_.size();
  attach(parameters);
}

void Recorder::attach(const std::vector<at::Tensor>& parameters) {
  torch::nn::Module module;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    module.register_parameter("parameter_" + std::to_string(i), parameters[i],
                              parameters[i].requires_grad());
  probes_.attach(module);
  attached_ = parameters;
  are_attached_.clear();
  for (const auto& parameter : parameters) are_attached_.insert(parameter.unsafeGetTensorImpl());
}

bool Recorder::is_attached(const at::Tensor& parameter) const {
  return are_attached_.count(parameter.unsafeGetTensorImpl()) > 0;
}

void Recorder::add_parameters_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& parameter : parameters_of(optimizer))
    if (!is_of_model(parameter) && known_.insert(parameter.unsafeGetTensorImpl()).second) {
      of_optimizers_.push_back(weak_of(parameter));
      held_by_optimizers_.insert(parameter.unsafeGetTensorImpl());
    }
}

bool Recorder::has_optimizer(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(parameters, [&](const at::Tensor& each) { return is_known(each); });
}

std::vector<at::Tensor> Recorder::attached() {
  const std::lock_guard lock(mutex_);
  return attached_;
}

void Recorder::let_go(const std::vector<at::Tensor>& tensors) {
  told([&](Probes& probes) {
    probes.let_go(tensors);
    untrained_.let_go(tensors);
    unseen_updates_.forget();
    if (std::ranges::any_of(tensors, [&](const auto& each) { return is_attached(each); })) {
      attached_.clear();
      are_attached_.clear();
      has_model_ = started_;
    }
    for (const auto& tensor : tensors) {
      known_.erase(tensor.unsafeGetTensorImpl());
      held_by_optimizers_.erase(tensor.unsafeGetTensorImpl());
    }
    for (std::size_t i = of_optimizers_.size(); i-- > 0;) {
      if (held_by_optimizers_.count(of_optimizers_[i]._unsafe_get_target()) > 0) continue;
      of_optimizers_.erase(of_optimizers_.begin() + static_cast<std::ptrdiff_t>(i));
      for (auto* place : {&looked_at_, &made_last_}) *place -= *place > i ? 1 : 0;
    }
  });
}

// Of its first step the local gradients are not known.
void Recorder::find_next_model(const torch::optim::Optimizer& optimizer) {
  const auto step = writer_->step();
  if (!parameters_.empty() || !started_ || step <= 0 || made_in_step_ != step) return;
  const auto made_last = c10::ArrayRef<WeakTensor>(of_optimizers_).slice(made_last_);
  for (const auto& parameter : parameters_of(optimizer))
    if (!is_among(parameter, made_last)) return;
  attach_optimizers_from(made_last_);
  made_in_step_ = -1;
  gradients_told_ = true;
}

// An optimizer of the model has more parameters than before, or was made with more: they are the model's, too. Of this
// step the local gradients are not known.
void Recorder::find_added(const torch::optim::Optimizer& optimizer) {
  if (!parameters_.empty() || !started_) return;
  std::size_t size = 0;
  for (const auto& group : optimizer.param_groups()) size += group.params().size();
  if (std::exchange(sizes_[&optimizer], size) == size) return;
  auto parameters = attached_;
  for (const auto& parameter : parameters_of(optimizer))
    if (!is_attached(parameter)) parameters.push_back(parameter);
  const auto added = parameters.size() - attached_.size();
  const bool is_let_go = attached_.empty();
  if (added == 0 || (added == size && !is_let_go)) return;
  add_parameters_of(optimizer);
  attach(parameters);
  gradients_told_ = true;
}

}  // namespace lockstep::record
