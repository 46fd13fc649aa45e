// What oracles judge by, gathered beside a lesson's training and not in it: the library tells of the training as it
// runs (observe/observer.h), a `Notes` object writes it into the rank's outcome. Shares nothing with record.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/lesson/rank_context.h>
#include <lockstep/observe/observer.h>
#include <lockstep/observe/pass_count.h>
#include <lockstep/train/metrics.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class Fault;

// Of each training pass that the program's sampler begins, else of the whole training: the mean loss, the accuracy and
// the ids drawn. An oracle that needs more derives from it (Part::notes); what it overrides calls the base class's function, too.
class Notes : public Observer {
 public:
  explicit Notes(RankContext& context) : context_(context) {}

  // Once, when the training is over or has thrown.
  virtual void finish();

  void wrapped(torch::nn::Module& module, const std::string& engine) override;
  void replicated(const std::vector<std::shared_ptr<torch::nn::Module>>& copies) override;
  void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
            const at::Tensor& targets) override;
  void fetch(const Fetch& fetch) override;
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override;
  void dealt(const std::vector<std::int64_t>& ids) override;
  void pass_dealt() override;
  void optimizer_made(torch::optim::Optimizer& optimizer) override;
  void update_ended(torch::optim::Optimizer& optimizer) override;

 protected:
  RankContext& context() { return context_; }
  // The model itself that a gradient engine wrapped last, or that was replicated on several devices:
  // model<Mlp>(). Throws UsageError where there is none of that type.
  template <class Holder>
  Holder model() const {
    auto found = std::dynamic_pointer_cast<typename Holder::ContainedType>(model_.lock());
    if (!found) throw UsageError("no model of this type was wrapped or replicated");
    return Holder(std::move(found));
  }
  // The optimizer's. Throws UsageError where none has told of itself.
  const std::vector<at::Tensor>& parameters() const;
  // Writes down what was gathered since the last one, if anything was drawn or lost.
  void end_pass();

 private:
  RankContext& context_;
  std::weak_ptr<torch::nn::Module> model_;
  std::vector<at::Tensor> parameters_;
  Mean loss_, accuracy_;
  std::vector<std::int64_t> drawn_;
  std::int64_t batches_ = 0;
  PassCount pass_;
};

// For Part::notes.
template <class Derived>
std::shared_ptr<Notes> notes(RankContext& context, const Fault& fault) {
  return std::make_shared<Derived>(context, fault);
}

// One process that trains on what all ranks train on: what a reference is. It tells nobody.
template <class Holder>
class OneProcess {
 public:
  // `model` is its own from now on: a copy, or one drawn from the same seed.
  OneProcess(Holder model, double learning_rate)
      : model_(std::move(model)), optimizer_(model_->parameters(), learning_rate) {}

  // The gradient of the mean cross entropy over the batch, which stays in the model's parameters.
  void backward(const at::Tensor& inputs, const at::Tensor& targets) {
    optimizer_.zero_grad();
    const auto loss = torch::cross_entropy_loss(model_->forward(inputs), targets);
    loss.backward();
    loss_.add(loss);
  }
  void step() { optimizer_.step(); }

  Holder& model() { return model_; }
  double mean_loss() const { return loss_.value(); }  // over the steps

 private:
  Holder model_;
  torch::optim::SGD optimizer_;
  Mean loss_;
};

}  // namespace lockstep
