// Records a job from what the library tells of it (observe/observer.h): its groups, model, gradients, updates,
// samples, passes, schedules and checkpoints. record_into() makes one; a program calls nothing.
//
// What only the program knows is one call each, beside its own line; each does nothing where nobody records:
//
//   record::intent({.global_batch = 64, .loss_reduction = "mean"});
//   record::metric("accuracy", "evaluation", hits, count);
//   record::decision("stop", stops);
//   record::random_numbers(ids, numbers);
//   record::training_state("saved", parts);
//   record::average("statistics", own_mean, rows, mean_of_all);
//   record::async_result("sum", "used", sum);
//   record::inputs({images, tokens});       // of a training forward; our DistributedDataParallel tells its own
#pragma once

#include <c10/util/FunctionRef.h>
#include <lockstep/observe/observer.h>
#include <lockstep/record/drawn_samples.h>
#include <lockstep/record/graph_cuts.h>
#include <lockstep/record/kept_state.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/recorded_model.h>
#include <lockstep/record/settings.h>
#include <lockstep/record/unseen_updates.h>
#include <lockstep/record/untrained_leaves.h>
#include <lockstep/trace/event.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lockstep::record {

// Each update of the recorded model (record/recorded_model.h) is a step.
class Recorder final : public Observer {
 public:
  explicit Recorder(std::shared_ptr<trace::Writer> writer, const ProbeOptions& options = {});
  ~Recorder() override;

  // A program that makes Probes of this writer tells everything but groups by hand. This stops the recorder from
  // telling it a second time.
  void leave_to_probes();
  const std::shared_ptr<trace::Writer>& writer() const { return writer_; }
  Probes& probes() { return probes_; }
  // What the program itself tells, by a call of recorder.h: also where it has Probes of its own.
  void told(c10::function_ref<void(Probes&)> call);
  // The program ends: what is known by now is told.
  void ends();
  // The program now trains on the next batch that a sampler has dealt, or evaluates. To be called where the batch is
  // taken; without a call, a forward of the wrapped module or a loss says so.
  void take_dealt(bool training);
  // The program asked for a batch behind the last one. The pass ends here; or with its last batch's update, where the
  // program takes batches out of its loader ahead of training on them.
  void pass_over();
  // Also says what stands at some of the batch's positions, by hash_samples(), and of which data set it is: a program may
  // draw from several at a time. Its phase is not known yet.
  void dealt(const std::vector<std::int64_t>& ids, const trace::Contents& contents,
             const trace::Dataset& dataset);
  // Also says what the data set is: hashes that tell what its positions are of, and the samples there; 0 = not known.
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size, std::uint64_t ids,
                   std::uint64_t content);
  // Each rank holds a part of the model, of which nobody tells; what optimizers tell is whole beside it. `engine`: which
  // one cut it, if that is known. To be called before the first step.
  void sharded(const std::string& engine);
  // A backward begins, from this value. `whole`: its gradients are added to those of all leaves, and have no graph.
  void backward(const at::Tensor& root, bool whole = true);
  // Any thread's.
  void collective_begins(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors);
  // As Probes::let_go. What an optimizer moves is recorded again once it is told as a new one.
  void let_go(const std::vector<at::Tensor>& tensors);
  // Whether the model, or an optimizer that was told, has one of them.
  bool has_optimizer(const std::vector<at::Tensor>& parameters);
  // The model, where no engine has wrapped one; empty while it is not known.
  std::vector<at::Tensor> attached();
  // As Probes::training_state. Ends a pass that is done.
  void training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts);

  // As Probes::random_numbers, also before the first step.
  void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers);
  // What a model that no engine has wrapped is given by a training forward.
  void inputs(const std::vector<at::Tensor>& inputs);
  // Before a wrapped module is evaluated without its wrapper: as Probes::evaluates.
  void evaluates(torch::nn::Module& module);
  // As Probes::outside.
  void outside(const std::string& holder, const std::string& name, const at::Tensor& parameter);

  void group(const std::string& action, const std::string& name,
             const std::vector<int>& ranks) override;
  void wrapping(torch::nn::Module& module) override;
  void wrapped(torch::nn::Module& module, const std::string& engine) override;
  void forward_begins(torch::nn::Module& module, const std::vector<at::Tensor>& inputs) override;
  void forward_ended(torch::nn::Module& module) override;
  void average(const std::string& name, const at::Tensor& own, std::int64_t count,
               const at::Tensor& used) override;
  void sync_gradients(bool wanted) override;
  void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
            const at::Tensor& targets) override;
  void optimizer_made(torch::optim::Optimizer& optimizer) override;
  void zero_grad(const std::string& by) override;
  void update_begins(torch::optim::Optimizer& optimizer) override;
  void update_ended(torch::optim::Optimizer& optimizer) override;
  void update_shadowed() override;
  void clip(double max_norm, const at::Tensor& norm) override;
  void scaled_step(double scale, bool found_nonfinite, bool updates) override;
  void schedule(std::int64_t position, std::int64_t length) override;
  void set_epoch(std::int64_t epoch) override;
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override;
  void dealt(const std::vector<std::int64_t>& ids) override;
  void pass_dealt() override;
  void fetch(const Fetch& fetch) override;
  void saving(const std::filesystem::path& file) override;
  void saved(const std::filesystem::path& file, const std::vector<std::string>& keys) override;
  void loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
              const std::vector<std::string>& to, const std::vector<std::string>& keys) override;
  void refused(const std::filesystem::path& file) override;
  void state_taken(torch::nn::Module& module, bool own) override;
  void state_saved(const ValueOf<at::Tensor>& value) override;
  void optimizer_took(torch::optim::Optimizer& optimizer,
                      const ValueOf<at::Tensor>& state) override;
  void figure(double sum, double count) override;

 private:
  void hear(c10::function_ref<void()> call);
  bool prepare(c10::function_ref<void()> call);
  void fail(const std::exception& error);
  void look_for_update();
  void note_parameters(const at::Tensor& root);
  void look_at_graph_of(const at::Tensor& root);
  void look_for_earlier(const at::Tensor& root);
  void tell_untrained();
  void gradients_ready();  // once a step
  void end_step();
  void checkpoint_file(const std::string& action, const std::filesystem::path& file,
                       c10::function_ref<void(trace::CheckpointFile&)> describe);

  std::mutex mutex_;
  std::shared_ptr<trace::Writer> writer_;
  Probes probes_;
  RecordedModel model_;
  DrawnSamples samples_;
  KeptState state_;
  std::atomic<bool> by_hand_{false};  // the program tells by probes of its own
  std::atomic<bool> failed_{false};
  // Else a backward or a collective finds what has changed since the last backward.
  std::atomic<bool> updates_are_told_{false};
  UnseenUpdates unseen_updates_;
  bool is_updating_ = false;        // an optimizer is; a sharded one makes calls meanwhile
  bool gradients_told_ = false;     // of this step
  bool evaluates_ = false;          // the model's last forward was in evaluation mode
  std::vector<at::Tensor> losses_;  // per sample, since the last backward
  bool inputs_are_told_ = false;    // of a model that no engine has wrapped
  SteadySettings steady_settings_;  // of losses
  GraphCuts cuts_;
  std::vector<WeakNode> roots_;  // of this update's whole backwards
  UntrainedLeaves untrained_;
};

// Of this thread, else of the process; null where there is none.
std::shared_ptr<Recorder> recorder_here();

void intent(const trace::Intent& intent);
void metric(const std::string& name, const std::string& phase, double sum, double count);
void decision(const std::string& name, std::int64_t value);
void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers);
void training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts);
void inputs(const std::vector<at::Tensor>& inputs);
void average(const std::string& name, const at::Tensor& own, std::int64_t count,
             const at::Tensor& used);
void async_result(const std::string& name, const std::string& moment, const at::Tensor& result);

}  // namespace lockstep::record
