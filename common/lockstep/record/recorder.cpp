#include <lockstep/base/say.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/backward_hook.h>
#include <lockstep/record/recorder.h>

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::record {
namespace {

bool trains(const torch::nn::Module& module) {
  return module.is_training() && torch::GradMode::is_enabled();
}

}  // namespace

std::shared_ptr<Recorder> recorder_here() {
  for (const auto& observer : observers())
    if (auto found = std::dynamic_pointer_cast<Recorder>(observer)) return found;
  return nullptr;
}

Recorder::Recorder(std::shared_ptr<trace::Writer> writer, const ProbeOptions& options)
    : writer_(std::move(writer)),
      probes_(writer_, options),
      model_(*writer_, probes_),
      samples_(*writer_, probes_,
               {.batch =
                    [this](bool training) {
                      state_.tell();
                      if (training) look_for_update();
                    },
                .dealt_for_training = [this] { state_.tell_resumed(); }}),
      state_(*writer_, probes_, model_) {
  hook_backward([](const at::Tensor& root, const auto&, bool whole) {
    if (const auto current = recorder_here()) current->backward(root, whole);
  });
}

Recorder::~Recorder() {
  ends();
}

// Its devices may have ended before it.
void Recorder::ends() {
  hear([&] {
    state_.tell();
    samples_.end_pass();
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
      state_.tell();
      look_for_update();
      samples_.end_pass();
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

// ---- samples ----

void Recorder::set_epoch(std::int64_t epoch) {
  hear([&] {
    samples_.end_pass();
    probes_.set_epoch(epoch);
  });
}

void Recorder::pass_begins(std::int64_t epoch, std::int64_t dataset_size) {
  pass_begins(epoch, dataset_size, 0, 0);
}

void Recorder::pass_begins(std::int64_t epoch, std::int64_t dataset_size, std::uint64_t ids,
                           std::uint64_t content) {
  hear([&] { samples_.pass_begins(epoch, dataset_size, ids, content); });
}

void Recorder::dealt(const std::vector<std::int64_t>& ids) {
  hear([&] { samples_.dealt(ids); });
}

void Recorder::dealt(const std::vector<std::int64_t>& ids, const trace::Contents& contents,
                     const trace::Dataset& dataset) {
  hear([&] { samples_.dealt({ids, contents, dataset}); });
}

void Recorder::pass_dealt() {
  hear([&] { samples_.pass_dealt(); });
}

void Recorder::pass_over() {
  hear([&] { samples_.pass_over(); });
}

void Recorder::take_dealt(bool training) {
  hear([&] { samples_.draw_dealt(training); });
}

void Recorder::fetch(const Fetch& fetch) {
  hear([&] { samples_.fetch(fetch); });
}

// ---- what a gradient engine tells ----

void Recorder::wrapping(torch::nn::Module& module) {
  hear([&] { model_.wrapping(module); });
}

void Recorder::wrapped(torch::nn::Module& module, const std::string& engine) {
  hear([&] { model_.wrapped(module, engine); });
}

void Recorder::sharded(const std::string& engine) {
  hear([&] {
    model_.sharded();
    if (!engine.empty()) writer_->record(trace::Engine{engine, 0});
  });
}

void Recorder::forward_begins(torch::nn::Module& module, const std::vector<at::Tensor>& inputs) {
  hear([&] {
    if (trains(module)) model_.record_if_next(module);
    if (!model_.is_recorded(module)) return model_.given_to_another(module, inputs);
    state_.tell();
    look_for_update();
    samples_.forward_begins(module.is_training());
    const bool evaluated = std::exchange(evaluates_, !module.is_training());
    if (!trains(module)) return;
    if (evaluated) losses_.clear();  // no backward has come for them
    model_.look_again(module);
    model_.begin();
    probes_.inputs(inputs);
  });
}

void Recorder::forward_ended(torch::nn::Module& module) {
  hear([&] {
    if (!model_.is_recorded(module)) return;
    probes_.forward(module.is_training());
    if (!torch::GradMode::is_enabled()) samples_.looked();
  });
}

void Recorder::evaluates(torch::nn::Module& module) {
  hear([&] {
    if (model_.is_recorded(module)) probes_.evaluates();
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

void Recorder::state_taken(torch::nn::Module& module, bool own) {
  hear([&] {
    state_.model_took_state();
    model_.state_taken(module, own);
  });
}

void Recorder::outside(const std::string& holder, const std::string& name,
                       const at::Tensor& parameter) {
  hear([&] { probes_.outside(holder, name, parameter); });
}

// ---- a step ----

void Recorder::optimizer_made(torch::optim::Optimizer& optimizer) {
  told([&](Probes& probes) {
    updates_are_told_ = true;
    unseen_updates_.forget();
    model_.optimizer_made(optimizer);
    probes.made(optimizer);
  });
}

bool Recorder::has_optimizer(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(parameters, [&](const auto& each) { return model_.knows(each); });
}

std::vector<at::Tensor> Recorder::attached() {
  const std::lock_guard lock(mutex_);
  return model_.attached();
}

void Recorder::let_go(const std::vector<at::Tensor>& tensors) {
  told([&](Probes& probes) {
    probes.let_go(tensors);
    untrained_.let_go(tensors);
    unseen_updates_.forget();
    model_.let_go(tensors);
  });
}

void Recorder::zero_grad(const std::string& by) {
  hear([&] {
    model_.find();
    probes_.zero_grad(by);
  });
}

void Recorder::gradients_ready() {
  if (!std::exchange(gradients_told_, true)) probes_.gradients_ready();
}

void Recorder::end_step() {
  gradients_told_ = false;
  losses_.clear();
  roots_.clear();
  samples_.step_ended();
}

void Recorder::update_begins(torch::optim::Optimizer& optimizer) {
  hear([&] {
    is_updating_ = true;
    if (model_.update_begins(optimizer)) gradients_told_ = true;
    if (model_.is_of_another_model(optimizer)) return;
    model_.begin();
    state_.update_begins(optimizer);
    samples_.draw_backed();
    gradients_ready();
  });
}

void Recorder::update_ended(torch::optim::Optimizer& optimizer) {
  hear([&] {
    is_updating_ = false;
    if (model_.is_of_another_model(optimizer)) return;
    probes_.updated(optimizer);
    end_step();
  });
}

void Recorder::update_shadowed() {
  hear([&] { model_.begin(); });
  told([](Probes& probes) { probes.update_shadowed(); });
}

void Recorder::clip(double max_norm, const at::Tensor& norm) {
  hear([&] {
    if (probes_.looks_at_values()) probes_.clip(max_norm, norm.item<double>());
  });
}

void Recorder::scaled_step(double scale, bool found_nonfinite, bool updates) {
  hear([&] {
    model_.begin();
    gradients_ready();
    probes_.scaled_step(scale, found_nonfinite, updates);
    if (!updates) end_step();
  });
}

void Recorder::schedule(std::int64_t position, std::int64_t length) {
  hear([&] { probes_.schedule(position, length); });
}

}  // namespace lockstep::record
