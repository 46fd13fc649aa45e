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
#include <lockstep/observe/pass_count.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/unseen_updates.h>
#include <lockstep/record/untrained_leaves.h>
#include <lockstep/trace/event.h>

#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

namespace lockstep::record {

// Settings of a loss may depend on its batch, such as weights of classes. Those that do not, are told once.
class SteadySettings {
 public:
  // Those that were now seen for the third time, always with one value.
  trace::Settings look(const std::map<std::string, std::string>& settings);

 private:
  struct Seen {
    std::string value;
    int times = 0;
    bool varies = false;
  };
  std::map<std::string, Seen> seen_;
};

// It records one model at a time: the first that a gradient engine wraps, for as long as it lives. Where no engine wraps
// one, the model is the parameters of the optimizers that tell; where none tells, those that the first losses lead to and
// that change thereafter. One that is made after the last update of the recorded one, and trained, takes its place, as in
// cross-validation. Each update of the model is a step.
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
  // A backward begins, from this value.
  void backward(const at::Tensor& root);
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
  // A sampler's pass. It begins in the trace with its first batch, when its phase is known, and ends when all that was
  // dealt has been drawn.
  struct Pass {
    std::int64_t epoch = 0;
    trace::Dataset dataset;
    std::string phase;  // empty: not begun
    std::int64_t batches = 0;
    PassCount count;
    bool over = false;  // pass_over() was called
  };

  struct Batch {
    std::vector<std::int64_t> ids;
    trace::Contents contents;
    trace::Dataset dataset;
  };

  void watch(torch::nn::Module& module);
  void watch_another(torch::nn::Module& module);
  bool watches(const torch::nn::Module& module) const;
  void watch_if_next(torch::nn::Module& module);
  bool parameters_changed(const torch::nn::Module& module) const;
  void given_to_another(torch::nn::Module& module, const std::vector<at::Tensor>& inputs);
  void hear(c10::function_ref<void()> call);
  bool prepare(c10::function_ref<void()> call);
  void fail(const std::exception& error);
  bool moves_model(const torch::optim::Optimizer& optimizer) const;
  bool is_of_another_model(const torch::optim::Optimizer& optimizer) const;
  bool is_of_model(const at::Tensor& parameter) const;
  void find_outside();
  void find_kept();
  void find_model();  // the optimizers' parameters, where no engine has wrapped one
  void find_next_model(const torch::optim::Optimizer& optimizer);
  void find_added(const torch::optim::Optimizer& optimizer);
  void add_parameters_of(const torch::optim::Optimizer& optimizer);
  void attach(const std::vector<at::Tensor>& parameters);
  bool is_attached(const at::Tensor& parameter) const;
  void attach_optimizers_from(std::size_t first);
  void begin();  // before the first step
  void note_cuts(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors);
  void look_for_update();
  void note_parameters(const at::Tensor& root);
  void begin_with(const std::vector<UnseenUpdates::Noted>& changed);
  void draw_backed();
  void look_at_graph_of(const at::Tensor& root);
  bool is_known(const at::Tensor& parameter) const;  // of the model, or of an optimizer
  void tell_untrained();
  void gradients_ready();  // once a step
  void end_step();
  void draw(const std::string& phase, const std::vector<std::int64_t>& ids);
  void draw_dealt(bool training);
  void look_at_undecided();
  void add_dealt(Batch batch);
  void open_pass(const std::string& phase);
  void tell_other_set(trace::Dataset dataset);
  void end_pass();
  void end_pass_if_done();
  std::vector<at::Tensor> parameters_here() const;
  void keep_state(const std::string& moment, std::optional<std::vector<std::uint64_t>> moments);
  void tell_kept_state();
  void tell_resumed();
  void checkpoint_file(const std::string& action, const std::filesystem::path& file,
                       c10::function_ref<void(trace::CheckpointFile&)> describe);

  std::mutex mutex_;
  std::shared_ptr<trace::Writer> writer_;
  Probes probes_;
  std::atomic<bool> by_hand_{false};  // the program tells by probes of its own
  std::atomic<bool> failed_{false};
  std::weak_ptr<torch::nn::Module> wrapped_;
  struct Next {  // a model that was made while another one is recorded
    std::weak_ptr<torch::nn::Module> module;
    std::string engine;
    std::int64_t step = -1;  // of the recorded one
  } next_;
  // Others that engines have wrapped, such as a GAN's critic; what their forwards are given is recorded, too.
  std::vector<std::weak_ptr<torch::nn::Module>> others_;
  // The wrapped module's parameters, and which of them are trained, when they were looked at.
  std::vector<std::pair<const void*, bool>> parameters_;
  std::unordered_set<const void*> of_model_;  // the same
  std::vector<WeakTensor>
      of_optimizers_;  // but those that were of the wrapped module when they came
  std::unordered_set<const void*> held_by_optimizers_;  // the same
  std::size_t looked_at_ = 0;                           // of these, by find_outside()
  std::size_t made_last_ = 0;              // of these, the first that came in made_in_step_
  std::unordered_set<const void*> known_;  // of these, since a model began
  std::int64_t made_in_step_ = -1;
  // Optimizers with other parameters that were made after an update: a program may make one in each step.
  int made_later_ = 0;
  std::vector<std::weak_ptr<torch::nn::Module>> took_state_;  // before the first update
  std::size_t kept_looked_at_ = 0;                            // of these, by find_kept()
  std::map<std::string, int> kept_;                           // modules beside the model, by class
  std::vector<at::Tensor> attached_;              // the model, where no engine has wrapped one
  std::unordered_set<const void*> are_attached_;  // the same
  std::map<const torch::optim::Optimizer*, std::size_t> sizes_;  // parameters, at their last update
  bool has_model_ = false, started_ = false;
  bool sharded_ = false;
  bool model_has_optimizer_ = false;  // one that tells
  bool awaits_backward_ = false;      // a train batch was drawn
  bool gradients_told_ = false;       // of this step
  bool drawn_ = false;                // a batch to train on, since the last update
  std::size_t backed_ = 0;            // the first of dealt_ that saw a backward, and no update yet
  bool undecided_ = false;            // the one behind them went forward; does a backward follow?
  std::vector<at::Tensor> losses_;    // per sample, since the last backward
  bool evaluates_ = false;            // the model's last forward was in evaluation mode
  std::optional<trace::TrainingState> state_to_tell_;
  bool tells_state_ = false;     // the program itself
  bool read_ = false;            // a checkpoint
  bool resumes_ = false;         // from it, and has not told
  bool awaits_moments_ = false;  // it told, and no optimizer had taken a state
  std::map<const torch::optim::Optimizer*, std::uint64_t> moments_;  // that optimizers took
  bool inputs_are_told_ = false;    // of a model that no engine has wrapped
  SteadySettings steady_settings_;  // of losses
  UntrainedLeaves untrained_;
  std::atomic<bool> updates_are_told_{
      false};  // else a backward or a collective finds what has changed since the last backward
  UnseenUpdates unseen_updates_;
  std::optional<Pass> pass_;
  std::optional<Pass> around_;  // a train pass under way, inside of which pass_ evaluates
  std::deque<Batch> dealt_;     // and not drawn
  // Operations that led to what an all-reduce overwrote, since the last backward.
  struct Cut {
    trace::GraphCut what;
    std::weak_ptr<torch::autograd::Node> node;
  };
  std::vector<Cut> cuts_;
  bool fetches_ = false;              // the program tells what it takes out of its data
  std::set<std::string> known_sets_;  // phases whose data set was told
  std::set<std::tuple<std::int64_t, std::uint64_t, std::uint64_t>> other_sets_;  // that were told
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
