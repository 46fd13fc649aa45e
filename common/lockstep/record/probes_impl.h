// What Probes keep, and what they record at the ends of steps.
#pragma once

#include <lockstep/base/say.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/backward_hook.h>
#include <lockstep/record/fed_inputs.h>
#include <lockstep/record/held_parameters.h>
#include <lockstep/record/local_gradients.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/settings.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

namespace lockstep::record {

class Probes::Impl {
 public:
  using Place = c10::function_ref<std::optional<std::size_t>()>;  // of a parameter

  Impl(std::shared_ptr<trace::Writer> writer_in, const ProbeOptions& options_in)
      : writer(std::move(writer_in)), options(options_in) {}
  ~Impl() {
    try {
      record_end();
    } catch (const std::exception&) {  // the program ends, and its devices may have ended before it
    }
    detach();
  }

  bool values_wanted() const { return backwards <= kMostBackwards && probed.has(writer->step()); }
  // A scaler finds its scale in the first steps, and leaves some out: their gradients are recorded. Later only those of
  // probed steps are, since each is looked at as it comes.
  bool looks_at_gradients() const {
    return !gave_up && (values_wanted() || (attached && scales && writer->step() < 64));
  }

  void attach(torch::nn::Module& module) {
    held.remove_outside(module.parameters());  // they are the model's now
    record_last_update();
    const std::lock_guard lock(local_mutex);
    detach();
    const auto earlier = std::exchange(parameters, {});
    buffers.clear();
    buffer_names.clear();
    trace::Model model;
    for (const auto& item : module.named_parameters()) {
      if (!item.value().requires_grad() || !is_readable(item.value())) continue;
      model.names.push_back(item.key());
      model.shapes.push_back(item.value().sizes().vec());
      model.dtypes.emplace_back(c10::getDtypeNames(item.value().scalar_type()).first);
      parameters.push_back(item.value());
    }
    for (const auto& item : module.named_buffers()) {
      if (!is_readable(item.value())) continue;
      buffer_names.push_back(item.key());
      buffers.push_back(item.value());
    }
    const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (attached != model || !std::ranges::equal(parameters, earlier, is_same)) {
      const auto is_new = [&](const at::Tensor& own) { return !is_among(own, earlier); };
      if (!earlier.empty() && std::ranges::all_of(module.parameters(), is_new))
        writer->record(trace::AnotherModel{});
      writer->record(model);
      probed.begin_again(writer->step());
      if (auto set_up = settings_of(module); !set_up.keys.empty())
        writer->record(std::move(set_up));
    }
    attached = std::move(model);
    held.forget();
    places.clear();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      places.emplace(parameters[i].unsafeGetTensorImpl(), i);
    local.assign(parameters.size());
    may_be_cleared.assign(parameters.size(), false);
    for (std::size_t i = 0; options.hooks && i < parameters.size(); ++i)
      hooks.push_back(parameters[i].register_hook([this, i](const at::Tensor& gradient) {
        try_local([i] { return std::optional(i); }, gradient);
      }));
  }

  // Inside of the program's own backward, where no memory may be left.
  // `place` finds the parameter, under local_mutex.
  void try_local(Place place, const at::Tensor& gradient) noexcept {
    try {
      add_local(place, gradient);
    } catch (const std::exception& error) {
      if (!gave_up.exchange(true))
        say("lockstep: gradients are not recorded any further: " + text_of(error) + "\n");
    }
  }

  // Each parameter's hook runs once a backward, on the thread that runs that parameter's backward;
  // a program may run several backwards at once. A custom function may give no gradient.
  void add_local(Place place, const at::Tensor& gradient) {
    if (!is_readable(gradient) || !looks_at_gradients()) return;
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(local_mutex);
    const auto found = place();
    if (!found || !is_accumulated(parameters[*found])) return;
    const auto i = *found;
    if (values_wanted()) writer->record(trace::GradientArrived{static_cast<std::int64_t>(i)});
    if (std::exchange(may_be_cleared[i], false) && !is_not_zero(parameters[i].grad())) {
      if (values_wanted() && local.is_not_zero(i))
        writer->record(trace::GradientCleared{static_cast<std::int64_t>(i)});
      local.forget(i);
    }
    local.add(i, parameters[i], gradient, values_wanted());
  }

  // Nobody may hold a tensor that torch is about to swap. A model that has one is recorded again once it is attached.
  void let_go(const std::vector<at::Tensor>& tensors) {
    held.remove_outside(tensors);
    const auto is_gone = [&](const at::Tensor& own) { return is_among(own, tensors); };
    if (std::ranges::none_of(parameters, is_gone) && std::ranges::none_of(buffers, is_gone)) return;
    record_last_update();
    const std::lock_guard lock(local_mutex);
    detach();
    for (auto* all : {&parameters, &buffers}) all->clear();
    buffer_names.clear();
    places.clear();
    local.assign(0);
    may_be_cleared.clear();
    attached.reset();
  }

  void detach() {
    for (std::size_t i = 0; i < hooks.size(); ++i) parameters[i].remove_hook(hooks[i]);
    hooks.clear();
  }

  std::optional<std::size_t> place_of(const at::TensorImpl* parameter) const {
    const auto found = places.find(parameter);
    return found == places.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters) all.push_back(parameter.grad());
    return all;
  }

  void record_settings(const torch::optim::Optimizer& optimizer) {
    if (!attached || !optimizers.insert(&optimizer).second) return;
    auto set_up = settings_of(optimizer, parameters, attached->names);
    if (!set_up.keys.empty()) writer->record(std::move(set_up));
  }

  void backward() {
    if (++backwards == kMostBackwards + 1) forget_local();
  }

  void forget_local() {
    const std::lock_guard lock(local_mutex);
    local.forget();
  }

  // What was gathered of a step is of no use to the next one.
  void begin_step() {
    forget_local();
    backwards = 0;
    samples_since_update = 0;
    losses_since_update = 0;
  }

  void record_local_gradients() {
    if (gave_up) return;
    const auto samples = samples_since_update > 0 ? samples_since_update : losses_since_update;
    const std::lock_guard lock(local_mutex);
    writer->record(trace::LocalGradients{samples, local.summaries()});
  }

  void record_gradients() {
    record_local_gradients();
    if (!gave_up) writer->record(trace::ReducedGradients{summarize_all(gradients())});
  }

  void end_step() {
    const auto step = writer->step();
    const bool seen = values_wanted();
    unseen_update = seen ? std::nullopt : std::optional(step);
    if (seen) record_parameters();
    if (looks_at_generators()) record_generators();
    generators.clear();
    begin_step();
    buffers_moved = true;
    writer->set_step(step + 1);
  }

  // After a step, and as what the next one begins with.
  bool looks_at_generators() const { return values_wanted() || probed.has(writer->step() + 1); }

  void record_generators() {
    auto state = random_state(parameters);
    for (const auto& [name, hash] : generators) {
      state.generators.push_back(name);
      state.hashes.push_back(hash);
    }
    writer->record(std::move(state));
  }

  void record_end() {
    if (attached && writer->step() > 0) held.record_before_update(*writer, parameters);
    record_last_update();
  }

  void record_held() {
    if (attached) held.record(*writer, parameters);
    held.record_outside(*writer);
  }

  void record_parameters() {
    record_held();
    record_buffers();
  }

  // The parameters as the last update left them, where its step was not probed.
  void record_last_update() {
    const auto update = std::exchange(unseen_update, std::nullopt);
    if (!update || !attached) return;
    const auto step = writer->step();
    writer->set_step(*update);
    record_held();
    writer->set_step(step);
  }

  void record_buffers() {
    if (!buffers.empty()) writer->record(trace::Buffers{buffer_names, summarize_all(buffers)});
  }

  // The program itself sends a buffer to the others, as no engine does, which sends copies: what ranks hold of it is
  // recorded before. Of one buffer three times, then at growing distances.
  void before_broadcast(c10::ArrayRef<at::Tensor> tensors) {
    constexpr std::uint64_t kAlways = 3;
    const auto is_sent = [&](const at::Tensor& buffer) {
      return std::ranges::any_of(tensors, [&](const at::Tensor& sent) {
        return is_readable(sent) && sent.is_alias_of(buffer) && sent.numel() == buffer.numel();
      });
    };
    const auto found = std::ranges::find_if(buffers, is_sent);
    if (found == buffers.end()) return;
    const auto times = ++sent_times[found - buffers.begin()];
    if (std::exchange(sent_in, writer->step()) == writer->step()) return;
    if (times <= kAlways || std::has_single_bit(times)) record_buffers();
  }

  std::shared_ptr<trace::Writer> writer;
  ProbeOptions options;
  ProbedSteps probed{options};
  FedInputs fed;
  static constexpr int kMostBackwards = 256;  // of a step
  std::atomic<int> backwards{0};              // of this one
  std::int64_t samples_since_update = 0;      // drawn, as far as the program says
  std::int64_t losses_since_update = 0;       // that went into a loss
  std::optional<trace::Model> attached;
  std::optional<std::int64_t> unseen_update;  // the last, if its parameters were not recorded
  bool scales = false;                        // the program has told of a scaled step
  std::map<std::ptrdiff_t, std::uint64_t> sent_times;  // how often, by the buffer's place
  std::int64_t sent_in = -1;                           // the step
  bool buffers_moved = false;  // an update has passed since the last evaluation, or the first
  std::set<const torch::optim::Optimizer*> optimizers;  // whose settings were recorded
  std::map<std::string, std::uint64_t> generators;      // beside torch's, with hashes
  std::vector<std::string> buffer_names;
  std::vector<at::Tensor> parameters, buffers;
  std::unordered_map<const at::TensorImpl*, std::size_t> places;  // of the parameters
  HeldParameters held;
  std::atomic<bool> gave_up{false};  // on gradients
  std::mutex local_mutex;
  LocalGradients local;
  // By a zero_grad() since the parameter's last gradient. It may have been another model's.
  std::deque<bool> may_be_cleared;
  std::vector<unsigned> hooks;
};

}  // namespace lockstep::record
