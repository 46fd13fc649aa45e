#include <lockstep/base/say.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/parameters_of.h>
#include <lockstep/record/backward_hook.h>
#include <lockstep/record/recorder.h>
#include <lockstep/record/settings.h>

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::record {
namespace {

bool trains(const torch::nn::Module& module) {
  return module.is_training() && torch::GradMode::is_enabled();
}

// "Net" of a NetImpl in any namespace.
std::string class_of(const torch::nn::Module& module) {
  auto name = module.name();
  if (const auto colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace

std::shared_ptr<Recorder> recorder_here() {
  for (const auto& observer : observers())
    if (auto found = std::dynamic_pointer_cast<Recorder>(observer)) return found;
  return nullptr;
}

trace::Settings SteadySettings::look(const std::map<std::string, std::string>& settings) {
  constexpr int kTimes = 3;
  trace::Settings steady{.of = trace::SettingsOf::loss, .keys = {}, .values = {}};
  for (const auto& [key, value] : settings) {
    auto& seen = seen_[key];
    if (seen.times == 0) seen.value = value;
    seen.varies = seen.varies || seen.value != value;
    if (++seen.times != kTimes || seen.varies) continue;
    steady.keys.push_back(key);
    steady.values.push_back(value);
  }
  return steady;
}

Recorder::Recorder(std::shared_ptr<trace::Writer> writer, const ProbeOptions& options)
    : writer_(std::move(writer)), probes_(writer_, options) {
  hook_backward([](const at::Tensor& root) {
    if (const auto current = recorder_here()) current->backward(root);
  });
}

Recorder::~Recorder() {
  ends();
}

// Its devices may have ended before it.
void Recorder::ends() {
  hear([&] {
    tell_kept_state();
    end_pass();
  });
}

void Recorder::hear(c10::function_ref<void()> call) {
  told([&](Probes&) {
    if (!by_hand_) call();
  });
}

void Recorder::told(c10::function_ref<void(Probes&)> call) {
  // In a forked child the thread that holds the lock may be missing.
  if (!writer_->is_of_this_process()) return;
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  try {
    call(probes_);
  } catch (const std::exception& error) {
    fail(error);
  }
}

// What takes long, before the lock is taken: other threads tell meanwhile. False where nothing is to be told.
bool Recorder::prepare(c10::function_ref<void()> call) {
  if (failed_) return false;
  try {
    call();
    return true;
  } catch (const std::exception& error) {
    fail(error);
    return false;
  }
}

// The program does not end for its trace's sake.
void Recorder::fail(const std::exception& error) {
  if (failed_.exchange(true)) return;
  writer_->record(trace::RecordingEnd{"values"});
  say("lockstep: rank " + std::to_string(writer_->participant().rank) +
      " is recorded no further: " + text_of(error) + "\n");
}

void Recorder::leave_to_probes() {
  by_hand_ = true;
}

void Recorder::group(const std::string& action, const std::string& name,
                     const std::vector<int>& ranks) {
  if (action == "leave") {
    // An exception takes the group with it; and the tensors may wait for a collective that never ends.
    if (std::uncaught_exceptions() > 0 || std::current_exception()) return;
    hear([&] {
      tell_kept_state();
      look_for_update();
      end_pass();
      if (name == "0") {
        probes_.ends();
        tell_untrained();
      } else {
        probes_.flush();
      }
    });
  }
  told([&](Probes&) { writer_->record(trace::Group{action, name, {ranks.begin(), ranks.end()}}); });
}

// ---- what a gradient engine tells; which model is recorded is in recorder_models.cpp ----

void Recorder::sharded(const std::string& engine) {
  hear([&] {
    sharded_ = true;
    if (!engine.empty()) writer_->record(trace::Engine{engine, 0});
  });
}

void Recorder::forward_begins(torch::nn::Module& module, const std::vector<at::Tensor>& inputs) {
  hear([&] {
    if (trains(module)) watch_if_next(module);
    if (!watches(module)) return given_to_another(module, inputs);
    tell_kept_state();
    look_for_update();
    if (dealt_.size() > backed_ + 1) look_at_undecided();
    end_pass_if_done();
    // Several forwards before a backward are of one batch. One without gradients is of no training batch; and in training
    // mode, as of a GAN's generator before its critic's update, it begins no pass that evaluates. With gradients and in
    // evaluation mode the batch waits: a backward and an update train on it; without them, it was looked at.
    const bool keeps_gradients = torch::GradMode::is_enabled();
    const bool looks = !keeps_gradients && pass_ &&
                       (pass_->phase == "train" || (pass_->phase.empty() && module.is_training()));
    undecided_ =
        keeps_gradients && !module.is_training() && !awaits_backward_ && dealt_.size() > backed_;
    if (!undecided_ && !looks && !awaits_backward_) draw_dealt(trains(module));
    const bool evaluated = std::exchange(evaluates_, !module.is_training());
    if (!trains(module)) return;
    if (evaluated) losses_.clear();  // no backward has come for them
    if (parameters_changed(module)) watch(module);
    begin();
    probes_.inputs(inputs);
  });
}

void Recorder::forward_ended(torch::nn::Module& module) {
  hear([&] {
    if (!watches(module)) return;
    probes_.forward(module.is_training());
    if (!torch::GradMode::is_enabled()) drawn_ = false;
  });
}

void Recorder::inputs(const std::vector<at::Tensor>& inputs) {
  hear([&] {
    inputs_are_told_ = true;
    probes_.inputs(inputs);
  });
}

void Recorder::average(const std::string& name, const at::Tensor& own, std::int64_t count,
                       const at::Tensor& used) {
  hear([&] { probes_.average(name, own, count, used); });
}

void Recorder::sync_gradients(bool wanted) {
  hear([&] { probes_.sync_gradients(wanted); });
}

void Recorder::optimizer_made(torch::optim::Optimizer& optimizer) {
  told([&](Probes& probes) {
    updates_are_told_ = true;
    unseen_updates_.forget();
    model_has_optimizer_ |= moves_model(optimizer);
    probes.made(optimizer);
    sizes_.erase(&optimizer);  // an earlier one had this address
    constexpr int kMostLater = 8;
    if (writer_->step() > 0 && made_later_ == kMostLater) return;
    if (std::exchange(made_in_step_, writer_->step()) != writer_->step())
      made_last_ = of_optimizers_.size();
    const auto known = of_optimizers_.size();
    add_parameters_of(optimizer);
    made_later_ += writer_->step() > 0 && of_optimizers_.size() > known ? 1 : 0;
  });
}

bool Recorder::is_of_model(const at::Tensor& parameter) const {
  return of_model_.count(parameter.unsafeGetTensorImpl()) > 0;
}

// What the optimizers hold beside the model.
void Recorder::find_outside() {
  if (!started_) return;
  for (; looked_at_ < of_optimizers_.size(); ++looked_at_) {
    const at::Tensor parameter(of_optimizers_[looked_at_].lock());
    if (parameter.defined() && !is_of_model(parameter) && !is_attached(parameter) &&
        parameter.requires_grad())
      probes_.outside("optimizers", "parameter_" + std::to_string(looked_at_), parameter);
  }
  find_kept();
}

// Modules that took a state and that no optimizer has, such as an average of weights.
void Recorder::find_kept() {
  for (; kept_looked_at_ < took_state_.size(); ++kept_looked_at_) {
    const auto module = took_state_[kept_looked_at_].lock();
    if (!module) continue;
    const auto parameters = module->named_parameters();
    const bool trained =
        std::any_of(parameters.begin(), parameters.end(), [&](const auto& parameter) {
          const auto& tensor = parameter.value();
          return is_of_model(tensor) || is_attached(tensor) ||
                 known_.count(tensor.unsafeGetTensorImpl()) > 0;
        });
    if (trained) continue;
    const auto name = class_of(*module);
    const int number = ++kept_[name];
    const auto holder = "kept " + name + (number > 1 ? " " + std::to_string(number) : "");
    for (const auto& parameter : parameters)
      probes_.outside(holder, parameter.key(), parameter.value());
  }
}

void Recorder::state_taken(torch::nn::Module& module, bool own) {
  hear([&] {
    resumes_ = resumes_ || (read_ && writer_->step() <= 0);
    if (writer_->step() > 0) {  // what is kept later would be held as long as the job runs
      if (own) writer_->record(trace::OwnTensorsLoaded{class_of(module)});
      return;
    }
    const auto weak = module.weak_from_this();
    const auto is_it = [&](const auto& other) { return other.lock() == weak.lock(); };
    if (std::none_of(took_state_.begin(), took_state_.end(), is_it)) took_state_.push_back(weak);
  });
}

void Recorder::outside(const std::string& holder, const std::string& name,
                       const at::Tensor& parameter) {
  hear([&] { probes_.outside(holder, name, parameter); });
}

bool Recorder::moves_model(const torch::optim::Optimizer& optimizer) const {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (is_of_model(parameter)) return true;
  return false;
}

// Not where no optimizer moves the recorded model: that is a fault, and must be seen.
bool Recorder::is_of_another_model(const torch::optim::Optimizer& optimizer) const {
  return model_has_optimizer_ && !moves_model(optimizer);
}

// ---- a step ----

void Recorder::begin() {
  if (started_) return;
  find_model();
  if (!has_model_ && !sharded_) return;
  started_ = true;
  find_outside();
  probes_.start();
  if (const auto model = wrapped_.lock())
    if (auto modes = modes_of(*model); !modes.layers.empty()) writer_->record(std::move(modes));
}

void Recorder::zero_grad(const std::string& by) {
  hear([&] {
    find_model();
    probes_.zero_grad(by);
  });
}

void Recorder::gradients_ready() {
  if (!std::exchange(gradients_told_, true)) probes_.gradients_ready();
}

void Recorder::end_step() {
  gradients_told_ = drawn_ = awaits_backward_ = false;
  losses_.clear();
  if (pass_ && pass_->over) end_pass();
}

void Recorder::update_begins(torch::optim::Optimizer& optimizer) {
  hear([&] {
    find_next_model(optimizer);
    find_added(optimizer);
    find_outside();
    if (is_of_another_model(optimizer)) return;
    begin();
    tell_resumed();
    if (std::exchange(awaits_moments_, false) && optimizer.state().empty()) {
      keep_state("resumed", std::vector<std::uint64_t>{});
      tell_kept_state();
    }
    draw_backed();
    gradients_ready();
  });
}

void Recorder::update_ended(torch::optim::Optimizer& optimizer) {
  hear([&] {
    if (is_of_another_model(optimizer)) return;
    probes_.updated(optimizer);
    end_step();
  });
}

void Recorder::update_shadowed() {
  hear([&] { begin(); });
  told([&](Probes&) {
    if (const auto step = writer_->step(); step >= 0) writer_->set_step(step + 1);
  });
}

void Recorder::clip(double max_norm, const at::Tensor& norm) {
  hear([&] {
    if (probes_.looks_at_values()) probes_.clip(max_norm, norm.item<double>());
  });
}

void Recorder::scaled_step(double scale, bool found_nonfinite, bool updates) {
  hear([&] {
    begin();
    gradients_ready();
    probes_.scaled_step(scale, found_nonfinite, updates);
    if (!updates) end_step();
  });
}

void Recorder::schedule(std::int64_t position, std::int64_t length) {
  hear([&] { probes_.schedule(position, length); });
}

}  // namespace lockstep::record
