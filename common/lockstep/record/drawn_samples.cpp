#include <lockstep/record/drawn_samples.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace lockstep::record {
namespace {

std::string phase_here() {
  return torch::GradMode::is_enabled() ? "train" : "evaluation";
}

auto key_of(const trace::Dataset& dataset) {
  return std::tuple(dataset.size, dataset.ids_in_order, dataset.content_as_set);
}

}  // namespace

void DrawnSamples::pass_begins(std::int64_t epoch, std::int64_t dataset_size, std::uint64_t ids,
                               std::uint64_t content) {
  end_pass();
  const bool inside = pass_ && pass_->phase == "train" && phase_here() == "evaluation";
  if (inside) around_ = std::move(pass_);
  if (phase_here() == "train") around_.reset();
  dealt_.clear();
  pass_ = Pass{
      .epoch = epoch, .dataset = {"", dataset_size, dataset_size, ids, ids, content}, .phase = {}};
}

void DrawnSamples::dealt(const std::vector<std::int64_t>& ids) {
  if (pass_) dealt({ids, {}, pass_->dataset});
}

void DrawnSamples::dealt(Batch batch) {
  if (!pass_) return;
  pass_->count.dealt(batch.ids);
  if (!fetches_) dealt_.push_back(std::move(batch));
}

void DrawnSamples::pass_dealt() {
  if (!pass_) return;
  pass_->count.all_dealt();
  if (pass_->count.is_done()) open_pass(phase_here());  // it holds no sample
}

void DrawnSamples::pass_over() {
  if (!pass_) return;
  pass_->over = true;
  end_pass();
}

void DrawnSamples::open_pass(const std::string& phase) {
  // What is drawn for the first step is of that step, though the model may not have begun it.
  if (phase == "train" && writer_.step() < 0) writer_.set_step(0);
  if (!pass_ || !pass_->phase.empty()) return;
  pass_->phase = phase;
  pass_->dataset.phase = phase;
  if (known_sets_.insert(phase).second) writer_.record(pass_->dataset);
  probes_.pass_begin(phase, pass_->epoch);
}

// Of a batch of another loader than the one whose pass is recorded.
void DrawnSamples::tell_other_set(trace::Dataset dataset) {
  constexpr std::size_t kMost = 16;
  const bool is_known = dataset.ids_in_order != 0 || dataset.content_as_set != 0;
  if (!pass_ || !is_known || key_of(pass_->dataset) == key_of(dataset) ||
      other_sets_.size() == kMost)
    return;
  dataset.phase = "train";
  if (other_sets_.insert(key_of(dataset)).second) writer_.record(dataset);
}

void DrawnSamples::draw_backed() {
  for (auto left = std::exchange(backed_, 0); left > 0; --left) draw_dealt(true);
}

void DrawnSamples::draw(const std::string& phase, const std::vector<std::int64_t>& ids) {
  before_.batch(phase == "train");
  if (around_ && around_->phase == phase) {
    end_pass();
    if (around_) pass_ = std::exchange(around_, std::nullopt);
  }
  open_pass(phase);
  probes_.samples(phase, ids);
  drawn_ = awaits_backward_ = phase == "train";
  if (!pass_ || pass_->phase != phase) return;
  pass_->count.drawn(ids);
  ++pass_->batches;
}

// The next batch that a sampler has dealt, to a program that does not tell what it takes out of its data; of a program
// that draws from several data sets at a time, the next one of each.
void DrawnSamples::draw_dealt(bool training) {
  if (fetches_ || dealt_.empty()) return;
  // Of a sampler that has dealt several, some may be thrown away.
  if (training && dealt_.size() <= 2) before_.dealt_for_training();
  std::vector<Batch> next;
  std::erase_if(dealt_, [&](const Batch& batch) {
    const auto is_of = [&](const Batch& one) {
      return key_of(one.dataset) == key_of(batch.dataset);
    };
    if (std::ranges::any_of(next, is_of)) return false;
    next.push_back(batch);
    return true;
  });
  for (const auto& batch : next) {
    draw(training ? "train" : "evaluation", batch.ids);
    if (!training) continue;
    tell_other_set(batch.dataset);
    if (!batch.contents.ids.empty()) writer_.record(batch.contents);
  }
}

// No backward came; or no update, as where gradients are taken to look at a model.
void DrawnSamples::look_at_undecided() {
  const auto batches = std::exchange(backed_, 0) + (std::exchange(undecided_, false) ? 1 : 0);
  for (std::size_t i = 0; i < batches; ++i) draw_dealt(false);
}

void DrawnSamples::fetch(const Fetch& fetch) {
  end_pass_if_done();
  fetches_ = true;
  dealt_.clear();
  const bool looks = !torch::GradMode::is_enabled();  // at samples of whatever data set
  const auto phase = looks || fetch.phase.empty() ? phase_here() : fetch.phase;
  if (known_sets_.insert(phase).second) {
    auto all = fetch.all_ids;
    if (all.empty()) {
      all.resize(static_cast<std::size_t>(fetch.inputs.size(0)));
      std::iota(all.begin(), all.end(), 0);
    }
    probes_.dataset(phase, fetch.inputs, fetch.targets, all, fetch.global_size);
  }
  draw(phase, fetch.ids);
}

// Several forwards before a backward are of one batch. One without gradients is of no training batch; and in training
// mode, as of a GAN's generator before its critic's update, it begins no pass that evaluates. With gradients and in
// evaluation mode the batch waits: a backward and an update train on it; without them, it was looked at.
void DrawnSamples::forward_begins(bool in_training_mode) {
  if (dealt_.size() > backed_ + 1) look_at_undecided();
  end_pass_if_done();
  const bool keeps_gradients = torch::GradMode::is_enabled();
  const bool looks = !keeps_gradients && pass_ &&
                     (pass_->phase == "train" || (pass_->phase.empty() && in_training_mode));
  undecided_ = keeps_gradients && !in_training_mode && !awaits_backward_ && dealt_.size() > backed_;
  if (!undecided_ && !looks && !awaits_backward_) draw_dealt(in_training_mode && keeps_gradients);
}

void DrawnSamples::loss() {
  if (!drawn_ && !undecided_ && backed_ == 0) draw_dealt(true);
}

void DrawnSamples::backward() {
  if (std::exchange(undecided_, false)) ++backed_;
  awaits_backward_ = false;
}

void DrawnSamples::step_ended() {
  drawn_ = awaits_backward_ = false;
  if (pass_ && pass_->over) end_pass();
}

// The last batch's update may still be to come.
void DrawnSamples::end_pass_if_done() {
  if (!drawn_ && !undecided_ && backed_ == 0) end_pass();
}

void DrawnSamples::end_pass() {
  look_at_undecided();
  if (!pass_ || !pass_->count.is_done() || pass_->phase.empty()) return;
  const auto ended = *std::exchange(pass_, std::exchange(around_, std::nullopt));
  probes_.pass_end(ended.phase, ended.epoch, ended.batches);
}

}  // namespace lockstep::record
