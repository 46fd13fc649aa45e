#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/record/content.h>
#include <lockstep/record/probes_impl.h>
#include <lockstep/record/recorder.h>

#include <bit>
#include <utility>

namespace lockstep::record {

ProbeStretch probe_stretch_from_environment() {
  const auto every = environment_int("LOCKSTEP_EVERY");
  const auto from = environment_int("LOCKSTEP_FROM"), to = environment_int("LOCKSTEP_TO");
  if (!every && (from || to))
    throw UsageError("LOCKSTEP_FROM and LOCKSTEP_TO are set, and LOCKSTEP_EVERY is not");
  if (!every) return {};
  ProbeStretch stretch{.every = *every};
  if (from) stretch.from = *from;
  if (to) stretch.to = *to;
  if (*every < 1 || stretch.from < 0 || stretch.to < stretch.from)
    throw UsageError(
        "LOCKSTEP_EVERY must be at least 1, LOCKSTEP_FROM at least 0, and LOCKSTEP_TO not before "
        "it");
  return stretch;
}

bool ProbeOptions::probes(std::int64_t step) const {
  if (step < first) return true;
  if (also.every > 0 && step >= also.from && step <= also.to && step % also.every == 0) return true;
  if (every <= 0) return false;
  return step < every ? std::has_single_bit(static_cast<std::uint64_t>(step)) : step % every == 0;
}

bool ProbedSteps::has(std::int64_t step) const {
  return options_.probes(step) || (step >= since_ && step < since_ + options_.first);
}

void ProbedSteps::begin_again(std::int64_t step) {
  constexpr int kMost = 8;  // a program may freeze and thaw parameters in every step
  if (step > 0 && ++begun_ <= kMost) since_ = step;
}

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

void Probes::let_go(const std::vector<at::Tensor>& tensors) {
  if (impl_) impl_->let_go(tensors);
}

void Probes::local_gradient(const at::TensorImpl* parameter, const at::Tensor& gradient) {
  if (impl_) impl_->try_local([&] { return impl_->place_of(parameter); }, gradient);
}

void Probes::backward() {
  if (impl_) impl_->backward();
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
  const Content content = hash_content(inputs, targets, ids);
  impl_->writer->record(trace::Dataset{phase, static_cast<std::int64_t>(ids.size()), global_size,
                                       content.ids_in_order, content.ids_as_set,
                                       content.content_as_set});
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

void Probes::evaluates(const std::string& holder) {
  if (!impl_) return;
  impl_->record_last_update();
  if (!std::exchange(impl_->buffers_moved, false)) return;
  if (!holder.empty()) impl_->held.record_outside(*impl_->writer, holder);
  impl_->record_buffers();
}

void Probes::forward(bool training) {
  if (!impl_) return;
  if (!training) evaluates();
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
  if (!impl_ || !impl_->attached) return;
  impl_->held.record_before_update(*impl_->writer, impl_->parameters);
  if (impl_->values_wanted()) impl_->record_gradients();
}

void Probes::outside(const std::string& holder, const std::string& name,
                     const at::Tensor& parameter) {
  if (impl_) impl_->held.add_outside(holder, name, parameter);
}

void Probes::made(const torch::optim::Optimizer& optimizer) {
  if (impl_) impl_->optimizers.erase(&optimizer);
}

void Probes::updated(const torch::optim::Optimizer& optimizer) {
  if (!impl_) return;
  trace::Update update;
  for (const auto& group : optimizer.param_groups()) update.lr.push_back(group.options().get_lr());
  impl_->writer->record(update);
  impl_->record_settings(optimizer);
  impl_->end_step();
}

void Probes::update_shadowed() {
  if (!impl_ || impl_->writer->step() < 0) return;
  impl_->unseen_update.reset();
  impl_->writer->set_step(impl_->writer->step() + 1);
}

bool Probes::looks_at_generators() const {
  return impl_ && impl_->looks_at_generators();
}

void Probes::generators(const std::map<std::string, std::uint64_t>& hashes) {
  if (impl_) impl_->generators = hashes;
}

void Probes::updated_unseen() {
  if (!impl_) return;
  if (impl_->values_wanted()) impl_->record_local_gradients();
  impl_->writer->record(trace::Update{});
  impl_->end_step();
}

void Probes::flush() {
  if (impl_) impl_->record_last_update();
}

void Probes::ends() {
  if (impl_) impl_->record_end();
}

void Probes::collective_begins(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors) {
  if (!impl_ || !impl_->attached || impl_->writer->step() <= 0) return;
  if (impl_->held.wanted_before(call, impl_->writer->step(), impl_->parameters))
    impl_->record_last_update();
  if (call.op == "broadcast") impl_->before_broadcast(tensors);
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
