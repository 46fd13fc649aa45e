// What the oracles of lesson 14 compare with: one process that takes the same steps.
#pragma once

#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

// It trains a copy of the model that was wrapped, on the global batch. At its end every step adds a
// "distance": between the weights of the two.
template <class Holder>
class OneProcessNotes : public lockstep::Notes {
 public:
  using Notes::Notes;

  void wrapped(torch::nn::Module& module, const std::string&) override {
    if (optimizer_) return;  // wrapped again
    trained_ = module.parameters();
    using Contained = typename Holder::ContainedType;
    copy_ = Holder(std::dynamic_pointer_cast<Contained>(module.clone(at::Device(at::kCPU))));
    optimizer_.emplace(copy_->parameters(), 0.0);  // update_begins() sets the rate
  }
  void fetch(const lockstep::Fetch& fetch) override {
    Notes::fetch(fetch);
    data_ = {fetch.inputs, fetch.targets};
    batch_ = static_cast<std::int64_t>(fetch.ids.size());
  }
  void update_begins(torch::optim::Optimizer& optimizer) override {
    const double learning_rate = optimizer.param_groups().front().options().get_lr();
    optimizer_->param_groups().front().options().set_lr(learning_rate);
    optimizer_->zero_grad();
    const auto parameters = copy_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].requires_grad_(trained_[i].requires_grad());  // frozen here as there
    backward(step_++);
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    optimizer_->step();
    lockstep::add_figure(context(), "distance",
                         lockstep::relative_distance(lockstep::flat_parameters(trained_),
                                                     lockstep::flat_parameters(*copy_)));
  }
  void finish() override {
    Notes::finish();
    if (losses_.count > 0) context().outcome().reference_losses.push_back(losses_.value());
  }

 protected:
  // The mean loss of a batch, by the copy.
  virtual at::Tensor loss_of(const lockstep::TensorData& batch) = 0;
  // The copy's gradient in this step: of the global batch.
  virtual void backward(int step) {
    const auto ids = lockstep::global_batch(step, batch_ * context().world_size());
    const auto mean = loss_of(lockstep::rows_of(data_, ids));
    mean.backward();
    losses_.add(mean);
  }

  Holder& copy() { return copy_; }
  const std::vector<at::Tensor>& trained() const { return trained_; }  // the wrapped model's
  const lockstep::TensorData& data() const { return data_; }

 private:
  std::vector<at::Tensor> trained_;
  Holder copy_{nullptr};
  std::optional<torch::optim::SGD> optimizer_;
  lockstep::TensorData data_;
  std::int64_t batch_ = 0;  // of a rank
  lockstep::Mean losses_;
  int step_ = 0;
};

class OneProcessOfMlp : public OneProcessNotes<lockstep::Mlp> {
 public:
  OneProcessOfMlp(lockstep::RankContext& job, const lockstep::Fault&) : OneProcessNotes(job) {}

 private:
  at::Tensor loss_of(const lockstep::TensorData& batch) override {
    return torch::cross_entropy_loss(copy()->forward(batch.inputs), batch.targets);
  }
};
