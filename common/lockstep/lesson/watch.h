// What oracles judge by, gathered beside a lesson's training and not in it: the library tells of the training as it
// runs (observe/observer.h), a Watch writes it into the rank's outcome. Shares nothing with record.
#pragma once

#include <lockstep/lesson/rank_context.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/metrics.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

class Fault;

// Of each training pass that the program's sampler begins, else of the whole training: the mean loss, the accuracy and
// the ids drawn. An oracle that needs more derives from it (Part::watch); what it overrides calls Watch's own, too.
// Silent where the lesson still tells by probes.
class Watch : public Observer {
 public:
  explicit Watch(RankContext& context) : context_(context) {}

  // Once, when the training is over or has thrown.
  virtual void finish();

  void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
            const at::Tensor& targets) override;
  void fetch(const Fetch& fetch) override;
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override;
  void dealt(const std::vector<std::int64_t>& ids) override;
  void pass_dealt() override;
  void update_ended(torch::optim::Optimizer& optimizer) override;

  void group(const std::string&, const std::string&, const std::vector<int>&) override {}
  void wrapping(torch::nn::Module&) override {}
  void wrapped(torch::nn::Module&, const std::string&) override {}
  void forward_begins(torch::nn::Module&) override {}
  void forward_ended(torch::nn::Module&) override {}
  void sync_gradients(bool) override {}
  void optimizer_made(torch::optim::Optimizer& optimizer) override;
  void zero_grad(const std::string&) override {}
  void update_begins(torch::optim::Optimizer&) override {}
  void update_shadowed() override {}
  void clip(double, const at::Tensor&) override {}
  void scaled_step(double, bool, bool) override {}
  void schedule(std::int64_t, std::int64_t) override {}
  void set_epoch(std::int64_t) override {}
  void saving(const std::filesystem::path&) override {}
  void saved(const std::filesystem::path&) override {}
  void loaded(const std::filesystem::path&, const std::vector<std::string>&,
              const std::vector<std::string>&, const std::vector<std::string>&) override {}
  void refused(const std::filesystem::path&) override {}

 protected:
  RankContext& context() { return context_; }
  // The optimizer's. Throws UsageError where none has told of itself.
  const std::vector<at::Tensor>& parameters() const;
  // Writes down what was gathered since the last one, if anything was drawn or lost.
  void end_pass();

 private:
  RankContext& context_;
  std::vector<at::Tensor> parameters_;
  Mean loss_, accuracy_;
  std::vector<std::int64_t> drawn_;
  std::int64_t batches_ = 0;
  std::int64_t to_draw_ = 0, empty_to_draw_ = 0;  // of a pass: samples, and batches of none
  bool all_dealt_ = false;
};

// For Part::watch.
template <class Derived>
std::shared_ptr<Watch> beside(RankContext& context, const Fault& fault) {
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
