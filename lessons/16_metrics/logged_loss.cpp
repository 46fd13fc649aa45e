// Lesson 16, part "logged-loss": the loss that you log is not the loss that you train on.
//
// Concept:  for the log, the loss is averaged over the ranks. For backward it must not be: the
//           wrapper averages the gradients already, and the collective is no part of the graph.
// Symptom:  the log is right. The division by W is part of the graph and the sum is not: the
//           gradient is 1/W of the right one, as with 1/W of the learning rate.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/functional.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 8;

// Of each step's global batch, the next kBatch * world_size samples, a rank takes every W-th.
std::vector<std::vector<std::int64_t>> batches_of(int rank, int world_size) {
  std::vector<std::vector<std::int64_t>> batches;
  for (int step = 0; step < kSteps; ++step)
    batches.push_back(share_of(rank, world_size, global_batch(step, kBatch * world_size)));
  return batches;
}

// The log of a lesson's run is its outcome.
void write_log(RankContext& context, const at::Tensor& loss) {
  add_figure(context, "logged", loss.item<double>());
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kSteps);
  Mlp module(784, 32, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);
  // Two near misses reduce the loss itself too: after backward, where nobody minds; or through a
  // collective that has a gradient, whose sum makes up for the division.
  const bool after_backward = fault("near-miss-reduced-after-backward");
  const bool with_gradient = fault("near-miss-reduced-with-gradient");

  const auto batches = batches_of(rank, world_size);
  tell_pass(0, data.size(), batches);
  for (const auto& ids : batches) {
    const auto batch = take(data, ids);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    at::Tensor logged;
    if (fault("loss-all-reduced-in-place")) {  // PITFALL loss-all-reduced-in-place
      all_reduce(group, loss);
      loss = loss / world_size;
      logged = loss;  // Right for the log. And then backward starts from it.
    } else if (with_gradient) {
      loss = functional::all_reduce(context.group(), loss) / world_size;
      logged = loss;
    } else if (!after_backward) {
      logged = loss.detach().clone();
      all_reduce(group, logged);
      logged /= world_size;
    }
    loss.backward();
    if (after_backward) {
      all_reduce(group, loss);
      logged = loss / world_size;
    }
    write_log(context, logged);
    optimizer.step();
  }
}

// Beside it one process with the same weights computes the gradient of the global batch.
class Beside final : public Watch {
 public:
  Beside(RankContext& job, const Fault&)
      : Watch(job),
        global_batch_(kBatch * job.world_size()),
        data_(fashion_mnist_or_synthetic(Split::train, global_batch_ * kSteps)) {}

  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    Watch::optimizer_made(optimizer);
    one_process_ = Mlp(784, 32, 10);  // after the ranks' model: both draw random numbers
    one_process_->to(context().device());
  }
  void update_begins(torch::optim::Optimizer&) override {
    copy(parameters(), one_process_->parameters());
    const auto batch = rows_of(data_, global_batch(step_++, global_batch_));
    const auto expected = gradient_of_batch(one_process_, batch);
    add_figure(context(), "gradient_scale", scale_of(flat_gradients(parameters()), expected));
  }

 private:
  static void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from.at(i));
  }

  std::int64_t global_batch_;
  TensorData data_;
  Mlp one_process_{nullptr};
  std::int64_t step_ = 0;
};

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part logged_loss_part() {
  return {.name = "logged-loss",
          .run = train,
          .broken = {{.slug = "loss-all-reduced-in-place",
                      .what = "averages the loss itself over the ranks, then calls its backward",
                      .oracle = {"gradient over one process's gradient", gradient_scale}}},
          .near_misses = {{.name = "near-miss-reduced-after-backward",
                           .slug = "loss-all-reduced-in-place",
                           .naive_check = "the loss itself is all-reduced, in place"},
                          {.name = "near-miss-reduced-with-gradient",
                           .slug = "loss-all-reduced-in-place",
                           .naive_check = "backward starts from the mean of all ranks' losses"}},
          .watch = beside<Beside>};
}
