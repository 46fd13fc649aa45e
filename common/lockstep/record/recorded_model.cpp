#include <lockstep/observe/parameters_of.h>
#include <lockstep/record/recorded_model.h>
#include <lockstep/record/settings.h>

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

// "Net" of a NetImpl in any namespace.
std::string class_of(const torch::nn::Module& module) {
  auto name = module.name();
  if (const auto colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

auto is_same_as(torch::nn::Module& module) {
  return
      [weak = module.weak_from_this()](const auto& other) { return other.lock() == weak.lock(); };
}

}  // namespace

// ---- a gradient engine tells ----

bool RecordedModel::is_recorded(const torch::nn::Module& module) const {
  return wrapped_.lock().get() == &module;
}

void RecordedModel::record(torch::nn::Module& module) {
  wrapped_ = module.weak_from_this();
  parameters_ = addresses_of(module);
  addresses_.clear();
  for (const auto& [address, trained] : parameters_) addresses_.insert(address);
  is_known_ = true;
  probes_.attach(module);
}

void RecordedModel::record_another(torch::nn::Module& module) {
  record(module);
  has_optimizer_ =
      std::ranges::any_of(alive(of_optimizers_), [&](const auto& each) { return has(each); });
}

void RecordedModel::wrapping(torch::nn::Module& module) {
  if (is_recorded(module)) return record(module);
  if (wrapped_.expired()) return record_another(module);
  const auto step = writer_.step();
  if (next_.module.expired() || next_.step != step) next_ = {module.weak_from_this(), "", step};
}

void RecordedModel::wrapped(torch::nn::Module& module, const std::string& engine) {
  if (is_recorded(module)) return probes_.engine(engine);
  if (next_.module.lock().get() == &module) next_.engine = engine;
}

void RecordedModel::record_if_next(torch::nn::Module& module) {
  const auto step = writer_.step();
  if (step <= 0 || next_.step != step || next_.module.lock().get() != &module) return;
  record_another(module);
  probes_.engine(next_.engine);
}

void RecordedModel::look_again(torch::nn::Module& module) {
  if (probes_.looks_at_values() && addresses_of(module) != parameters_) record(module);
}

void RecordedModel::given_to_another(torch::nn::Module& module,
                                     const std::vector<at::Tensor>& inputs) {
  if (!begun_ || !module.is_training() || !torch::GradMode::is_enabled()) return;
  auto found = std::ranges::find_if(others_, is_same_as(module));
  if (found == others_.end()) found = others_.insert(found, module.weak_from_this());
  probes_.inputs(inputs, 1 + (found - others_.begin()));
}

// ---- an optimizer tells ----

void RecordedModel::find() {
  if (is_known_ || of_optimizers_.empty()) return;
  attach_optimizers_from(0);
  is_known_ = true;
}

void RecordedModel::attach_optimizers_from(std::size_t first) {
  const auto parameters = alive(c10::ArrayRef<WeakTensor>(of_optimizers_).slice(first));
  known_.clear();
  for (const auto& parameter : parameters) known_.insert(parameter.unsafeGetTensorImpl());
  looked_at_ = of_optimizers_.size();
  attach(parameters);
}

void RecordedModel::attach(const std::vector<at::Tensor>& parameters) {
  torch::nn::Module module;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    module.register_parameter("parameter_" + std::to_string(i), parameters[i],
                              parameters[i].requires_grad());
  probes_.attach(module);
  attached_ = parameters;
  are_attached_.clear();
  for (const auto& parameter : parameters) are_attached_.insert(parameter.unsafeGetTensorImpl());
}

void RecordedModel::begin_with(const std::vector<at::Tensor>& parameters,
                               const trace::Parameters& before) {
  writer_.set_step(-1);
  attach(parameters);
  writer_.record(before);
  writer_.set_step(0);
  is_known_ = begun_ = true;
}

void RecordedModel::optimizer_made(const torch::optim::Optimizer& optimizer) {
  has_optimizer_ |= moved_by(optimizer);
  sizes_.erase(&optimizer);  // an earlier one had this address
  constexpr int kMostLater = 8;
  const auto step = writer_.step();
  if (step > 0 && made_later_ == kMostLater) return;
  if (std::exchange(made_in_step_, step) != step) made_last_ = of_optimizers_.size();
  const auto known = of_optimizers_.size();
  add_parameters_of(optimizer);
  made_later_ += step > 0 && of_optimizers_.size() > known ? 1 : 0;
}

void RecordedModel::add_parameters_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& parameter : parameters_of(optimizer))
    if (!has(parameter) && known_.insert(parameter.unsafeGetTensorImpl()).second) {
      of_optimizers_.push_back(weak_of(parameter));
      held_by_optimizers_.insert(parameter.unsafeGetTensorImpl());
    }
}

void RecordedModel::let_go(const std::vector<at::Tensor>& tensors) {
  if (std::ranges::any_of(tensors, [&](const auto& each) { return is_attached(each); })) {
    attached_.clear();
    are_attached_.clear();
    is_known_ = begun_;
  }
  for (const auto& tensor : tensors) {
    known_.erase(tensor.unsafeGetTensorImpl());
    held_by_optimizers_.erase(tensor.unsafeGetTensorImpl());
  }
  for (std::size_t i = of_optimizers_.size(); i-- > 0;) {
    if (held_by_optimizers_.contains(of_optimizers_[i]._unsafe_get_target())) continue;
    of_optimizers_.erase(of_optimizers_.begin() + static_cast<std::ptrdiff_t>(i));
    for (auto* place : {&looked_at_, &made_last_}) *place -= *place > i ? 1 : 0;
  }
}

bool RecordedModel::update_begins(const torch::optim::Optimizer& optimizer) {
  const bool has_next = find_next(optimizer), has_added = find_added(optimizer);
  find_outside();
  return has_next || has_added;
}

bool RecordedModel::find_next(const torch::optim::Optimizer& optimizer) {
  const auto step = writer_.step();
  if (is_wrapped() || !begun_ || step <= 0 || made_in_step_ != step) return false;
  const auto made_last = c10::ArrayRef<WeakTensor>(of_optimizers_).slice(made_last_);
  for (const auto& parameter : parameters_of(optimizer))
    if (!is_among(parameter, made_last)) return false;
  attach_optimizers_from(made_last_);
  made_in_step_ = -1;
  return true;
}

// An optimizer of the model has more parameters than before, or was made with more: they are the model's, too.
bool RecordedModel::find_added(const torch::optim::Optimizer& optimizer) {
  if (is_wrapped() || !begun_) return false;
  std::size_t size = 0;
  for (const auto& group : optimizer.param_groups()) size += group.params().size();
  if (std::exchange(sizes_[&optimizer], size) == size) return false;
  auto parameters = attached_;
  for (const auto& parameter : parameters_of(optimizer))
    if (!is_attached(parameter)) parameters.push_back(parameter);
  const auto added = parameters.size() - attached_.size();
  const bool is_let_go = attached_.empty();
  if (added == 0 || (added == size && !is_let_go)) return false;
  add_parameters_of(optimizer);
  attach(parameters);
  return true;
}

// Asked twice an update: nothing is copied.
bool RecordedModel::moved_by(const torch::optim::Optimizer& optimizer) const {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(),
                               [&](const auto& parameter) { return has(parameter); });
  });
}

bool RecordedModel::is_of_another_model(const torch::optim::Optimizer& optimizer) const {
  return has_optimizer_ && !moved_by(optimizer);
}

// ---- what is there beside the model ----

// What the optimizers hold.
void RecordedModel::find_outside() {
  if (!begun_) return;
  for (; looked_at_ < of_optimizers_.size(); ++looked_at_) {
    const at::Tensor parameter(of_optimizers_[looked_at_].lock());
    if (parameter.defined() && !is_recorded(parameter) && parameter.requires_grad())
      probes_.outside("optimizers", "parameter_" + std::to_string(looked_at_), parameter);
  }
  find_kept();
}

// Modules that took a state and that no optimizer has, such as an average of weights.
void RecordedModel::find_kept() {
  for (; kept_looked_at_ < took_state_.size(); ++kept_looked_at_) {
    const auto module = took_state_[kept_looked_at_].lock();
    if (!module) continue;
    const auto parameters = module->named_parameters();
    const bool trained = std::ranges::any_of(parameters, [&](const auto& parameter) {
      const auto& tensor = parameter.value();
      return is_recorded(tensor) || known_.contains(tensor.unsafeGetTensorImpl());
    });
    if (trained) continue;
    const auto name = class_of(*module);
    const int number = ++kept_[name];
    const auto holder = "kept " + name + (number > 1 ? " " + std::to_string(number) : "");
    for (const auto& parameter : parameters)
      probes_.outside(holder, parameter.key(), parameter.value());
  }
}

void RecordedModel::state_taken(torch::nn::Module& module, bool own) {
  if (writer_.step() > 0) {  // what is kept later would be held as long as the job runs
    if (own) writer_.record(trace::OwnTensorsLoaded{class_of(module)});
    return;
  }
  if (std::ranges::none_of(took_state_, is_same_as(module)))
    took_state_.push_back(module.weak_from_this());
}

// ---- the model ----

void RecordedModel::begin() {
  if (begun_) return;
  find();
  if (!is_known_ && !sharded_) return;
  begun_ = true;
  find_outside();
  probes_.start();
  if (const auto model = wrapped_.lock())
    if (auto modes = modes_of(*model); !modes.layers.empty()) writer_.record(std::move(modes));
}

bool RecordedModel::has(const at::Tensor& parameter) const {
  return addresses_.contains(parameter.unsafeGetTensorImpl());
}

bool RecordedModel::is_attached(const at::Tensor& parameter) const {
  return are_attached_.contains(parameter.unsafeGetTensorImpl());
}

bool RecordedModel::is_recorded(const at::Tensor& parameter) const {
  return has(parameter) || is_attached(parameter);
}

bool RecordedModel::knows(const at::Tensor& parameter) const {
  return is_recorded(parameter) || held_by_optimizers_.contains(parameter.unsafeGetTensorImpl());
}

std::vector<at::Tensor> RecordedModel::parameters() const {
  if (const auto model = wrapped_.lock()) return model->parameters();
  return attached_.empty() ? alive(of_optimizers_) : attached_;
}

}  // namespace lockstep::record
