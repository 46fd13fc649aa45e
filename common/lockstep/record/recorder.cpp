#include <lockstep/base/environment.h>
#include <lockstep/record/backward_hook.h>
#include <lockstep/record/recorder.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::record {
namespace {

using Lock = std::lock_guard<std::mutex>;

bool trains(const torch::nn::Module& module) {
  return module.is_training() && torch::GradMode::is_enabled();
}

std::string phase_here() {
  return torch::GradMode::is_enabled() ? "train" : "evaluation";
}

std::vector<bool> trainable_of(const torch::nn::Module& module) {
  std::vector<bool> trainable;
  for (const auto& parameter : module.parameters()) trainable.push_back(parameter.requires_grad());
  return trainable;
}

}  // namespace

std::shared_ptr<Recorder> recorder_here() {
  for (const auto& observer : observers())
    if (auto found = std::dynamic_pointer_cast<Recorder>(observer)) return found;
  return nullptr;
}

Recorder::Recorder(std::shared_ptr<trace::Writer> writer, const ProbeOptions& options)
    : writer_(std::move(writer)), options_(options), probes_(writer_, options) {
  hook_backward([](const at::Tensor& root) {
    if (const auto current = recorder_here()) current->backward(root);
  });
}

Recorder::~Recorder() {
  end_pass();
}

void Recorder::leave_to_probes() {
  const Lock lock(mutex_);
  by_hand_ = true;
}

void Recorder::group(const std::string& action, const std::string& name,
                     const std::vector<int>& ranks) {
  const Lock lock(mutex_);
  if (action == "leave") {
    end_pass();
    probes_.flush();
  }
  writer_->record(trace::Group{action, name, {ranks.begin(), ranks.end()}});
}

// ---- the model ----

bool Recorder::watches(const torch::nn::Module& module) const {
  return wrapped_.lock().get() == &module;
}

void Recorder::watch(torch::nn::Module& module) {
  wrapped_ = module.weak_from_this();
  trainable_ = trainable_of(module);
  has_model_ = true;
  probes_.attach(module);
}

void Recorder::wrapping(torch::nn::Module& module) {
  const Lock lock(mutex_);
  if (by_hand_ || (!wrapped_.expired() && !watches(module))) return;
  watch(module);
}

void Recorder::wrapped(torch::nn::Module& module, const std::string& engine) {
  const Lock lock(mutex_);
  if (!by_hand_ && watches(module)) probes_.engine(engine);
}

bool Recorder::trainable_changed(const torch::nn::Module& module) const {
  return options_.probes(writer_->step()) && trainable_of(module) != trainable_;
}

void Recorder::forward_begins(torch::nn::Module& module) {
  const Lock lock(mutex_);
  if (by_hand_ || !watches(module)) return;
  end_pass_if_done();
  draw_dealt(trains(module));
  if (!trains(module)) return;
  if (trainable_changed(module)) watch(module);
  begin();
}

void Recorder::forward_ended(torch::nn::Module& module) {
  const Lock lock(mutex_);
  if (by_hand_ || !watches(module)) return;
  probes_.forward(module.is_training());
  if (!trains(module)) drawn_ = false;
}

void Recorder::sync_gradients(bool wanted) {
  const Lock lock(mutex_);
  if (!by_hand_) probes_.sync_gradients(wanted);
}

void Recorder::optimizer_made(torch::optim::Optimizer& optimizer) {
  const Lock lock(mutex_);
  for (const auto& group : optimizer.param_groups())
    of_optimizers_.insert(of_optimizers_.end(), group.params().begin(), group.params().end());
}

void Recorder::find_model() {
  if (has_model_ || of_optimizers_.empty()) return;
  torch::nn::Module module;
  for (std::size_t i = 0; i < of_optimizers_.size(); ++i)
    module.register_parameter("parameter_" + std::to_string(i), of_optimizers_[i],
                              of_optimizers_[i].requires_grad());
  probes_.attach(module);
  has_model_ = true;
}

// ---- a step ----

void Recorder::begin() {
  if (started_) return;
  find_model();
  if (!has_model_) return;
  probes_.start();
  started_ = true;
}

void Recorder::loss(const at::Tensor& per_sample, const at::Tensor&, const at::Tensor&) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  begin();
  if (!drawn_) draw_dealt(true);
  losses_.push_back(per_sample.detach().reshape(-1));
}

void Recorder::backward(const at::Tensor& root) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  begin();
  const auto losses = std::exchange(losses_, {});
  if (!losses.empty() && root.numel() == 1)
    probes_.loss(root, losses.size() == 1 ? losses.front() : at::cat(losses));
}

void Recorder::zero_grad(const std::string& by) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  find_model();
  probes_.zero_grad(by);
}

void Recorder::gradients_ready() {
  if (!std::exchange(gradients_told_, true)) probes_.gradients_ready();
}

void Recorder::end_step() {
  gradients_told_ = drawn_ = false;
  losses_.clear();
}

void Recorder::update_begins(torch::optim::Optimizer&) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  begin();
  gradients_ready();
}

void Recorder::update_ended(torch::optim::Optimizer& optimizer) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  probes_.updated(optimizer);
  end_step();
}

void Recorder::update_shadowed() {
  const Lock lock(mutex_);
  if (const auto step = writer_->step(); step >= 0) writer_->set_step(step + 1);
}

void Recorder::clip(double max_norm, const at::Tensor& norm) {
  const Lock lock(mutex_);
  if (!by_hand_ && options_.probes(writer_->step())) probes_.clip(max_norm, norm.item<double>());
}

void Recorder::scaled_step(double scale, bool found_nonfinite, bool updates) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  begin();
  gradients_ready();
  probes_.scaled_step(scale, found_nonfinite, updates);
  if (!updates) end_step();
}

void Recorder::schedule(std::int64_t position, std::int64_t length) {
  const Lock lock(mutex_);
  if (!by_hand_) probes_.schedule(position, length);
}

// ---- samples ----

void Recorder::set_epoch(std::int64_t epoch) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  end_pass();
  probes_.set_epoch(epoch);
}

void Recorder::pass_begins(std::int64_t epoch, std::int64_t dataset_size) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  end_pass();
  dealt_.clear();
  pass_ = Pass{.epoch = epoch, .dataset_size = dataset_size, .phase = {}};
}

void Recorder::dealt(const std::vector<std::int64_t>& ids) {
  const Lock lock(mutex_);
  if (by_hand_ || !pass_) return;
  pass_->to_draw += static_cast<std::int64_t>(ids.size());
  if (!fetches_) dealt_.push_back(ids);
}

void Recorder::pass_dealt() {
  const Lock lock(mutex_);
  if (by_hand_ || !pass_) return;
  pass_->dealt = true;
  if (pass_->to_draw == 0) open_pass(phase_here());  // of nothing
}

void Recorder::open_pass(const std::string& phase) {
  if (!pass_ || !pass_->phase.empty()) return;
  pass_->phase = phase;
  if (std::find(known_sets_.begin(), known_sets_.end(), phase) == known_sets_.end()) {
    known_sets_.push_back(phase);
    writer_->record(trace::Dataset{phase, pass_->dataset_size, pass_->dataset_size, 0, 0, 0});
  }
  probes_.pass_begin(phase, pass_->epoch);
}

void Recorder::draw(const std::string& phase, const std::vector<std::int64_t>& ids) {
  open_pass(phase);
  probes_.samples(phase, ids);
  drawn_ = true;
  if (!pass_ || pass_->phase != phase) return;
  pass_->to_draw -= static_cast<std::int64_t>(ids.size());
  ++pass_->batches;
}

// The next batch that a sampler has dealt, to a program that does not tell what it takes out of its data.
void Recorder::draw_dealt(bool training) {
  if (fetches_ || dealt_.empty()) return;
  const auto ids = std::move(dealt_.front());
  dealt_.pop_front();
  draw(training ? "train" : "evaluation", ids);
}

void Recorder::fetch(const Fetch& fetch) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  end_pass_if_done();
  fetches_ = true;
  dealt_.clear();
  const auto phase = fetch.phase.empty() ? phase_here() : fetch.phase;
  if (std::find(known_sets_.begin(), known_sets_.end(), phase) == known_sets_.end()) {
    known_sets_.push_back(phase);
    auto all = fetch.all_ids;
    if (all.empty()) {
      all.resize(static_cast<std::size_t>(fetch.inputs.size(0)));
      std::iota(all.begin(), all.end(), 0);
    }
    probes_.dataset(phase, fetch.inputs, fetch.targets, all, fetch.global_size);
  }
  draw(phase, fetch.ids);
}

// The last batch's update may still be to come.
void Recorder::end_pass_if_done() {
  if (!drawn_) end_pass();
}

// Where all of it was drawn; a pass that was broken off has no end.
void Recorder::end_pass() {
  if (!pass_ || !pass_->dealt || pass_->to_draw > 0 || pass_->phase.empty()) return;
  const auto ended = *std::exchange(pass_, std::nullopt);
  probes_.pass_end(ended.phase, ended.epoch, ended.batches);
}

// ---- checkpoints ----

trace::CheckpointFile Recorder::checkpoint_file() const {
  trace::CheckpointFile what;
  what.local_rank = environment_int("LOCAL_RANK").value_or(writer_->participant().rank);
  const auto model = wrapped_.lock();
  const auto parameters = model ? model->parameters() : of_optimizers_;
  what.device = parameters.empty() ? "cpu" : parameters.front().device().str();
  return what;
}

void Recorder::saving(const std::filesystem::path& file) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  end_pass();
  probes_.checkpoint_file("save_begin", file, checkpoint_file());
}

void Recorder::saved(const std::filesystem::path& file) {
  const Lock lock(mutex_);
  if (!by_hand_) probes_.checkpoint_file("save_end", file, checkpoint_file());
}

void Recorder::loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
                      const std::vector<std::string>& to, const std::vector<std::string>& keys) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  auto what = checkpoint_file();
  what.from = from;
  what.to = to;
  what.keys = keys;
  probes_.checkpoint_file("load", file, what);
}

void Recorder::refused(const std::filesystem::path& file) {
  const Lock lock(mutex_);
  if (by_hand_) return;
  auto what = checkpoint_file();
  what.accepted = false;
  probes_.checkpoint_file("load", file, what);
}

// ---- what only the program knows ----

void intent(const trace::Intent& intent) {
  if (const auto current = recorder_here()) current->probes().intent(intent);
}

void metric(const std::string& name, const std::string& phase, double sum, double count) {
  if (const auto current = recorder_here()) current->probes().metric(name, phase, sum, count);
}

void decision(const std::string& name, std::int64_t value) {
  if (const auto current = recorder_here()) current->probes().decision(name, value);
}

void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers) {
  if (const auto current = recorder_here()) current->probes().random_numbers(ids, numbers);
}

}  // namespace lockstep::record
