#include <lockstep/record/configuration.h>
#include <lockstep/record/content.h>
#include <lockstep/record/fed_inputs.h>
#include <lockstep/record/held_parameters.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/recorder.h>

#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::record {
class Probes::Impl {
 public:
  Impl(std::shared_ptr<trace::Writer> writer_in, const ProbeOptions& options_in)
      : writer(std::move(writer_in)), options(options_in) {}
  ~Impl() {
    try {
      record_last_update();
    } catch (const std::exception&) {  // the program ends, and its devices may have ended before it
    }
    detach();
  }

  bool values_wanted() const { return probed.has(writer->step()); }
  // A scaler finds its scale in the first steps, and leaves some out: their gradients are recorded. Later only those of
  // probed steps are, since this costs a copy of all gradients.
  bool looks_at_gradients() const {
    return values_wanted() || (attached && scales && writer->step() < 64);
  }

  void attach(torch::nn::Module& module) {
    held.remove_outside(module.parameters());  // they are the model's now
    record_last_update();
    detach();
    const auto earlier = std::exchange(parameters, {});
    buffers.clear();
    buffer_names.clear();
    trace::Model model;
    for (const auto& item : module.named_parameters()) {
      if (!item.value().requires_grad()) continue;
      model.names.push_back(item.key());
      model.shapes.push_back(item.value().sizes().vec());
      model.dtypes.emplace_back(c10::getDtypeNames(item.value().scalar_type()).first);
      parameters.push_back(item.value());
    }
    for (const auto& item : module.named_buffers()) {
      buffer_names.push_back(item.key());
      buffers.push_back(item.value());
    }
    const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
    if (attached != model || !std::ranges::equal(parameters, earlier, is_same)) {
      writer->record(model);
      probed.begin_again(writer->step());
      if (auto set_up = configuration_of(module); !set_up.keys.empty())
        writer->record(std::move(set_up));
    }
    attached = std::move(model);
    held.forget();
    local.assign(parameters.size(), {});
    may_be_cleared.assign(parameters.size(), false);
    for (std::size_t i = 0; options.hooks && i < parameters.size(); ++i)
      hooks.push_back(parameters[i].register_hook(
          [this, i](const at::Tensor& gradient) { add_local(i, gradient); }));
  }

  // Each parameter's hook runs once a backward, on the thread that runs that parameter's backward;
  // a program may run several backwards at once. A custom function may give no gradient.
  void add_local(std::size_t i, const at::Tensor& gradient) {
    if (!gradient.defined() || !looks_at_gradients()) return;
    if (values_wanted()) writer->record(trace::GradientArrived{static_cast<std::int64_t>(i)});
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(local_mutex);
    auto& sum = local[i];
    if (std::exchange(may_be_cleared[i], false) && !is_not_zero(parameters[i].grad())) {
      if (values_wanted() && is_not_zero(sum))
        writer->record(trace::GradientCleared{static_cast<std::int64_t>(i)});
      sum.reset();
    }
    if (!sum.defined())
      sum = gradient.detach().clone();  // .grad may become it, and be reduced in place
    else if (sum.is_sparse() && !gradient.is_sparse())
      sum = gradient.detach() + sum;  // the other order is refused
    else
      sum.add_(gradient);
  }

  void detach() {
    for (std::size_t i = 0; i < hooks.size(); ++i) parameters[i].remove_hook(hooks[i]);
    hooks.clear();
  }

  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const auto& parameter : parameters) all.push_back(parameter.grad());
    return all;
  }

  void record_configuration(const torch::optim::Optimizer& optimizer) {
    if (!attached || !optimizers.insert(&optimizer).second) return;
    auto set_up = configuration_of(optimizer, parameters, attached->names);
    if (!set_up.keys.empty()) writer->record(std::move(set_up));
  }

  // What was gathered of a step is of no use to the next one.
  void begin_step() {
    for (auto& gradient : local) gradient.reset();
    samples_since_update = 0;
    losses_since_update = 0;
  }

  void record_gradients() {
    const auto samples = samples_since_update > 0 ? samples_since_update : losses_since_update;
    writer->record(trace::LocalGradients{samples, summarize_all(local)});
    writer->record(trace::ReducedGradients{summarize_all(gradients())});
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

  std::shared_ptr<trace::Writer> writer;
  ProbeOptions options;
  ProbedSteps probed{options};
  FedInputs fed;
  std::int64_t samples_since_update = 0;  // drawn, as far as the program says
  std::int64_t losses_since_update = 0;   // that went into a loss
  std::optional<trace::Model> attached;
  std::optional<std::int64_t> unseen_update;  // the last, if its parameters were not recorded
  bool scales = false;                        // the program has told of a scaled step
  bool buffers_moved = false;  // an update has passed since the last evaluation, or the first
  std::set<const torch::optim::Optimizer*> optimizers;  // whose configuration was recorded
  std::vector<std::string> buffer_names;
  std::vector<at::Tensor> parameters, buffers;
  HeldParameters held;
  std::mutex local_mutex;
  std::vector<at::Tensor> local;  // the gradients since the last update; undefined where none came
  // By a zero_grad() since the parameter's last gradient. It may have been another model's.
  std::deque<bool> may_be_cleared;
  std::vector<unsigned> hooks;
};

Probes::Probes(std::shared_ptr<trace::Writer> writer, const ProbeOptions& options)
    : impl_(writer ? std::make_unique<Impl>(std::move(writer), options) : nullptr) {
  const auto recorder = recorder_here();
  if (impl_ && recorder && recorder->writer() == impl_->writer) recorder->leave_to_probes();
}
Probes::~Probes() = default;

bool Probes::looks_at_values() const {
  return impl_ && impl_->values_wanted();
}

void Probes::intent(const trace::Intent& intent) {
  if (impl_) impl_->writer->record(intent);
}

void Probes::attach(torch::nn::Module& module) {
  if (impl_) impl_->attach(module);
}

bool Probes::looks_at_gradients() const {
  return impl_ && impl_->looks_at_gradients();
}

void Probes::local_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!looks_at_gradients()) return;
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i)
    if (impl_->parameters[i].is_same(parameter)) return impl_->add_local(i, gradient);
}

void Probes::engine(const std::string& kind) {
  if (impl_)
    impl_->writer->record(trace::Engine{kind, static_cast<std::int64_t>(impl_->parameters.size())});
}

void Probes::start() {
  if (!impl_) return;
  impl_->writer->set_step(-1);
  impl_->record_parameters();
  impl_->writer->set_step(0);
}

void Probes::dataset(const std::string& phase, const at::Tensor& inputs, const at::Tensor& targets,
                     const std::vector<std::int64_t>& ids, std::int64_t global_size) {
  if (!impl_) return;
  trace::Dataset dataset{phase, static_cast<std::int64_t>(ids.size()), global_size, 0, 0, 0};
  const Content content = hash_content(inputs, targets, ids);
  dataset.ids_in_order = content.ids_in_order;
  dataset.ids_as_set = content.ids_as_set;
  dataset.content_as_set = content.content_as_set;
  impl_->writer->record(dataset);
}

void Probes::set_epoch(std::int64_t epoch) {
  if (impl_) impl_->writer->record(trace::SetEpoch{epoch});
}

void Probes::pass_begin(const std::string& phase, std::int64_t epoch) {
  if (impl_) impl_->writer->record(trace::PassBegin{phase, epoch});
}

void Probes::samples(const std::string& phase, const std::vector<std::int64_t>& ids) {
  if (!impl_) return;
  impl_->writer->record(trace::Samples{phase, ids});
  if (phase == "train") impl_->samples_since_update += static_cast<std::int64_t>(ids.size());
}

void Probes::pass_end(const std::string& phase, std::int64_t epoch, std::int64_t batches) {
  if (!impl_) return;
  if (phase == "train") impl_->record_last_update();
  impl_->writer->record(trace::PassEnd{phase, epoch, batches});
}

void Probes::forward(bool training) {
  if (!impl_) return;
  if (!training) impl_->record_last_update();
  if (!training && std::exchange(impl_->buffers_moved, false)) impl_->record_buffers();
  impl_->writer->record(trace::Forward{training});
}

void Probes::inputs(const std::vector<at::Tensor>& inputs, std::int64_t module) {
  if (impl_) impl_->fed.record(*impl_->writer, module, inputs, impl_->values_wanted());
}

void Probes::loss(const at::Tensor& backward_loss, const at::Tensor& per_sample) {
  if (!impl_) return;
  impl_->losses_since_update += per_sample.numel();
  if (!impl_->values_wanted()) return;
  const at::NoGradGuard no_grad;
  impl_->writer->record(trace::Loss{backward_loss.item<double>(),
                                    per_sample.detach().to(at::kDouble).sum().item<double>(),
                                    per_sample.numel()});
}

void Probes::split(std::int64_t devices, const std::vector<std::int64_t>& sizes) {
  if (impl_) impl_->writer->record(trace::Split{devices, sizes});
}

void Probes::transfer(std::int64_t from, std::int64_t to, std::int64_t bytes,
                      const std::string& what) {
  if (impl_) impl_->writer->record(trace::Transfer{from, to, bytes, what});
}

void Probes::sync_gradients(bool wanted) {
  if (impl_) impl_->writer->record(trace::SyncGradients{wanted});
}

void Probes::zero_grad(const std::string& by) {
  if (!impl_) return;
  trace::ZeroGrad call{by};
  for (const auto& parameter : impl_->parameters)
    if (const auto& gradient = parameter.grad(); gradient.defined()) {
      ++call.gradients;
      call.views += gradient.is_view() ? 1 : 0;
    }
  impl_->writer->record(call);
  const std::lock_guard lock(impl_->local_mutex);
  impl_->may_be_cleared.assign(impl_->parameters.size(), true);
}

void Probes::gradients_ready() {
  if (!impl_ || !impl_->attached || !impl_->values_wanted()) return;
  impl_->held.record_before_update(*impl_->writer, impl_->parameters);
  impl_->record_gradients();
}

void Probes::outside(const std::string& holder, const std::string& name,
                     const at::Tensor& parameter) {
  if (impl_) impl_->held.add_outside(holder, name, parameter);
}

void Probes::updated(const torch::optim::Optimizer& optimizer) {
  if (!impl_) return;
  trace::Update update;
  for (const auto& group : optimizer.param_groups()) update.lr.push_back(group.options().get_lr());
  impl_->writer->record(update);
  impl_->record_configuration(optimizer);
  const auto step = impl_->writer->step();
  const bool seen = impl_->values_wanted();
  impl_->unseen_update = seen ? std::nullopt : std::optional(step);
  if (seen) {
    impl_->record_parameters();
    impl_->writer->record(random_state(impl_->parameters));
  }
  impl_->begin_step();
  impl_->buffers_moved = true;
  impl_->writer->set_step(step + 1);
}

void Probes::flush() {
  if (impl_) impl_->record_last_update();
}

void Probes::metric(const std::string& name, const std::string& phase, double sum, double count) {
  if (impl_) impl_->writer->record(trace::Metric{name, phase, sum, count});
}

void Probes::decision(const std::string& name, std::int64_t value) {
  if (impl_) impl_->writer->record(trace::Decision{name, value});
}

void Probes::async_result(const std::string& name, const std::string& moment,
                          const at::Tensor& result) {
  if (impl_) impl_->writer->record(trace::AsyncResult{name, moment, summarize(result).hash});
}

void Probes::random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers) {
  if (impl_) impl_->writer->record(trace::RandomNumbers{ids, hash_rows(numbers, ids.size())});
}

void Probes::clip(double max_norm, double norm) {
  if (impl_ && impl_->attached && impl_->values_wanted())
    impl_->writer->record(trace::Clip{max_norm, norm, summarize_all(impl_->gradients())});
}

void Probes::scaled_step(double scale, bool found_nonfinite, bool updates) {
  if (!impl_) return;
  if (!updates && impl_->looks_at_gradients() && !impl_->values_wanted()) impl_->record_gradients();
  impl_->scales = true;
  impl_->writer->record(trace::ScaledStep{scale, found_nonfinite, updates});
  if (!updates) impl_->begin_step();
}

void Probes::schedule(std::int64_t position, std::int64_t length) {
  if (impl_) impl_->writer->record(trace::Schedule{position, length});
}

void Probes::checkpoint_file(const std::string& action, const std::filesystem::path& file,
                             trace::CheckpointFile what) {
  if (!impl_) return;
  const auto filled_in = checkpoint_file_of(action, file);
  what.action = filled_in.action;
  what.file = filled_in.file;
  what.content = filled_in.content;
  checkpoint_file(what);
}

void Probes::checkpoint_file(const trace::CheckpointFile& what) {
  if (!impl_) return;
  if (what.action == "save_begin") impl_->record_last_update();
  impl_->writer->record(what);
}

void Probes::tell(const trace::Payload& event) {
  if (impl_) impl_->writer->record(event);
}
std::uint64_t Probes::enter(const trace::Collective& collective) {
  return impl_ ? impl_->writer->enter(collective) : 0;
}

void Probes::leave(std::uint64_t entered, bool failed) {
  if (impl_) impl_->writer->leave(entered, failed);
}

void Probes::data_file(const std::string& action, const std::filesystem::path& file,
                       bool accepted) {
  if (impl_) impl_->writer->record(trace::DataFile{action, hash_place(file), accepted});
}

void Probes::training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts) {
  if (impl_) impl_->writer->record(training_state_of(moment, parts));
}

void Probes::average(const std::string& name, const at::Tensor& own, std::int64_t count,
                     const at::Tensor& used) {
  if (!impl_ || !impl_->values_wanted()) return;
  const at::NoGradGuard no_grad;
  impl_->writer->record(
      trace::Average{name, count, count > 0 ? summarize(own) : trace::Summary{}, summarize(used)});
}

}  // namespace lockstep::record
