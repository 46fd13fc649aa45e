// The recorder's part of samples: which were drawn in which pass.
#include <lockstep/record/recorder.h>

#include <numeric>
#include <utility>

namespace lockstep::record {
namespace {

std::string phase_here() {
  return torch::GradMode::is_enabled() ? "train" : "evaluation";
}

}  // namespace

void Recorder::set_epoch(std::int64_t epoch) {
  hear([&] {
    end_pass();
    probes_.set_epoch(epoch);
  });
}

void Recorder::pass_begins(std::int64_t epoch, std::int64_t dataset_size) {
  pass_begins(epoch, dataset_size, 0, 0);
}

void Recorder::pass_begins(std::int64_t epoch, std::int64_t dataset_size, std::uint64_t ids,
                           std::uint64_t content) {
  hear([&] {
    end_pass();
    const bool inside = pass_ && pass_->phase == "train" && phase_here() == "evaluation";
    if (inside) around_ = std::move(pass_);
    if (phase_here() == "train") around_.reset();
    dealt_.clear();
    pass_ = Pass{.epoch = epoch,
                 .dataset_size = dataset_size,
                 .ids_hash = ids,
                 .content_hash = content,
                 .phase = {}};
  });
}

void Recorder::dealt(const std::vector<std::int64_t>& ids) {
  dealt(ids, {});
}

void Recorder::dealt(const std::vector<std::int64_t>& ids, const trace::Contents& contents) {
  hear([&] {
    if (!pass_) return;
    pass_->count.dealt(ids);
    if (!fetches_) dealt_.push_back({ids, contents});
  });
}

void Recorder::pass_dealt() {
  hear([&] {
    if (!pass_) return;
    pass_->count.all_dealt();
    if (pass_->count.is_done()) open_pass(phase_here());  // it holds no sample
  });
}

void Recorder::pass_over() {
  hear([&] {
    if (!pass_) return;
    pass_->over = true;
    end_pass();
  });
}

void Recorder::open_pass(const std::string& phase) {
  // What is drawn for the first step is of that step, though the model may not have begun it.
  if (phase == "train" && writer_->step() < 0) writer_->set_step(0);
  if (!pass_ || !pass_->phase.empty()) return;
  pass_->phase = phase;
  if (known_sets_.insert(phase).second)
    writer_->record(trace::Dataset{phase, pass_->dataset_size, pass_->dataset_size, pass_->ids_hash,
                                   pass_->ids_hash, pass_->content_hash});
  probes_.pass_begin(phase, pass_->epoch);
}

void Recorder::draw_backed() {
  for (auto left = std::exchange(backed_, 0); left > 0; --left) draw_dealt(true);
}

void Recorder::draw(const std::string& phase, const std::vector<std::int64_t>& ids) {
  tell_kept_state();
  if (phase == "train") look_for_update();
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

// The next batch that a sampler has dealt, to a program that does not tell what it takes out of its data.
void Recorder::draw_dealt(bool training) {
  if (fetches_ || dealt_.empty()) return;
  // Of a sampler that has dealt several, some may be thrown away.
  if (training && dealt_.size() <= 2) tell_resumed();
  const auto batch = std::move(dealt_.front());
  dealt_.pop_front();
  draw(training ? "train" : "evaluation", batch.ids);
  if (training && !batch.contents.ids.empty()) writer_->record(batch.contents);
}

// No backward came; or no update, as where gradients are taken to look at a model.
void Recorder::look_at_undecided() {
  const auto batches = std::exchange(backed_, 0) + (std::exchange(undecided_, false) ? 1 : 0);
  for (std::size_t i = 0; i < batches; ++i) draw_dealt(false);
}

void Recorder::take_dealt(bool training) {
  hear([&] { draw_dealt(training); });
}

void Recorder::fetch(const Fetch& fetch) {
  hear([&] {
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
  });
}

// The last batch's update may still be to come.
void Recorder::end_pass_if_done() {
  if (!drawn_ && !undecided_ && backed_ == 0) end_pass();
}

// Where all of it was drawn; a pass that was broken off has no end.
void Recorder::end_pass() {
  look_at_undecided();
  if (!pass_ || !pass_->count.is_done() || pass_->phase.empty()) return;
  const auto ended = *std::exchange(pass_, std::exchange(around_, std::nullopt));
  probes_.pass_end(ended.phase, ended.epoch, ended.batches);
}

}  // namespace lockstep::record
