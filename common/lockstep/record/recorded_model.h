// Which parameters are recorded as the model.
#pragma once

#include <lockstep/record/held_parameters.h>
#include <lockstep/record/probes.h>
#include <lockstep/trace/writer.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace lockstep::record {

// One model at a time: the first that a gradient engine wraps, for as long as it lives. Where no engine wraps one, the
// model is the parameters of the optimizers that tell; where none tells, those that begin_with() is given. One that is
// made after the last update of the recorded one, and trained, takes its place, as in cross-validation.
class RecordedModel {
 public:
  RecordedModel(trace::Writer& writer, Probes& probes) : writer_(writer), probes_(probes) {}

  // ---- a gradient engine tells ----
  void wrapping(torch::nn::Module& module);
  void wrapped(torch::nn::Module& module, const std::string& engine);
  bool is_recorded(const torch::nn::Module& module) const;
  bool is_wrapped() const { return !parameters_.empty(); }
  // A training forward begins: the module is recorded from now on, if it is the next one.
  void record_if_next(torch::nn::Module& module);
  // The same, of the recorded one: its parameters may be others than before.
  void look_again(torch::nn::Module& module);
  // A forward of another one: the recorded model may be given noise, and the data go into this one.
  void given_to_another(torch::nn::Module& module, const std::vector<at::Tensor>& inputs);
  // Each rank holds a part.
  void sharded() { sharded_ = true; }
  bool is_sharded() const { return sharded_; }

  // ---- an optimizer tells ----
  void optimizer_made(const torch::optim::Optimizer& optimizer);
  // Whether the model has parameters from now on whose local gradients of this step are not known.
  bool update_begins(const torch::optim::Optimizer& optimizer);
  // Not where no optimizer moves the recorded model: that is a fault, and must be seen.
  bool is_of_another_model(const torch::optim::Optimizer& optimizer) const;
  void let_go(const std::vector<at::Tensor>& tensors);

  // ---- neither does ----
  void begin_with(const std::vector<at::Tensor>& parameters, const trace::Parameters& before);

  void find();   // the optimizers' parameters, where no engine has wrapped one
  void begin();  // before the first step
  bool is_known() const { return is_known_; }
  void state_taken(torch::nn::Module& module, bool own);
  bool knows(const at::Tensor& parameter) const;  // of the model, or of an optimizer
  // Those of no module; empty while they are not known.
  const std::vector<at::Tensor>& attached() const { return attached_; }
  std::vector<at::Tensor> parameters() const;

 private:
  void record(torch::nn::Module& module);
  void record_another(torch::nn::Module& module);
  bool has(const at::Tensor& parameter) const;  // the wrapped module
  bool is_attached(const at::Tensor& parameter) const;
  bool is_recorded(const at::Tensor& parameter) const;  // either
  bool moved_by(const torch::optim::Optimizer& optimizer) const;
  void attach(const std::vector<at::Tensor>& parameters);
  void attach_optimizers_from(std::size_t first);
  bool find_next(const torch::optim::Optimizer& optimizer);
  bool find_added(const torch::optim::Optimizer& optimizer);
  void find_outside();
  void find_kept();
  void add_parameters_of(const torch::optim::Optimizer& optimizer);

  trace::Writer& writer_;
  Probes& probes_;
  bool is_known_ = false, begun_ = false, sharded_ = false;

  std::weak_ptr<torch::nn::Module> wrapped_;
  // Its parameters, and which of them are trained, when they were looked at.
  std::vector<std::pair<const void*, bool>> parameters_;
  std::unordered_set<const void*> addresses_;  // the same
  struct Next {  // a model that was made while another one is recorded
    std::weak_ptr<torch::nn::Module> module;
    std::string engine;
    std::int64_t step = -1;  // of the recorded one
  } next_;
  // Others that engines have wrapped, such as a GAN's critic; what their forwards are given is recorded, too.
  std::vector<std::weak_ptr<torch::nn::Module>> others_;

  std::vector<at::Tensor> attached_;              // the model, where no engine has wrapped one
  std::unordered_set<const void*> are_attached_;  // the same

  // But those that were of the wrapped module when they came.
  std::vector<WeakTensor> of_optimizers_;
  std::unordered_set<const void*> held_by_optimizers_;  // the same
  std::unordered_set<const void*> known_;               // of these, since a model began
  std::size_t looked_at_ = 0;                           // of these, by find_outside()
  std::size_t made_last_ = 0;  // of these, the first that came in made_in_step_
  std::int64_t made_in_step_ = -1;
  // Optimizers with other parameters that were made after an update: a program may make one in each step.
  int made_later_ = 0;
  bool has_optimizer_ = false;                                   // one that tells
  std::map<const torch::optim::Optimizer*, std::size_t> sizes_;  // parameters, at their last update

  std::vector<std::weak_ptr<torch::nn::Module>> took_state_;  // before the first update
  std::size_t kept_looked_at_ = 0;                            // of these, by find_kept()
  std::map<std::string, int> kept_;                           // modules beside the model, by class
};

}  // namespace lockstep::record
