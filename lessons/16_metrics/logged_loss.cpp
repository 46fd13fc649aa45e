// Lesson 16, part "logged-loss": the loss that you log is not the loss that you train on.
//
// Concept:  for the log, the loss is averaged over the ranks. For backward it must not be: the
//           wrapper averages the gradients already, and the collective is no part of the graph.
// Symptom:  the log is right. The division by W is part of the graph and the sum is not: the
//           gradient is 1/W of the right one, as with 1/W of the learning rate.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/functional.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "gradient_scale.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 8;

// A step's global batch is the next kBatch * world_size samples. A rank takes every W-th of them.
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

  const auto batches = batches_of(rank, world_size);
  tell_pass(0, data.size(), batches);
  for (const auto& ids : batches) {
    const auto batch = take(data, ids);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    if (fault("loss-all-reduced-in-place")) {
      all_reduce(group, loss);
      loss = loss / world_size;
      write_log(context, loss);  // Right for the log. And then backward starts from it.
    } else if (fault("near-miss-reduced-with-gradient")) {
      // A near miss: a collective that has a gradient, whose sum makes up for the division.
      loss = functional::all_reduce(context.group(), loss) / world_size;
      write_log(context, loss);
    } else if (fault("near-miss-reduced-after-backward")) {
      // A near miss: below, where nobody minds.
    } else {
      auto logged = loss.detach().clone();
      all_reduce(group, logged);
      write_log(context, logged / world_size);
    }
    loss.backward();
    if (fault("near-miss-reduced-after-backward")) {
      all_reduce(group, loss);
      write_log(context, loss / world_size);
    }
    optimizer.step();
  }
}

// Beside it one process with the same weights has all samples.
class OwnNotes final : public GradientScale {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : GradientScale(job, 10, kBatch * job.world_size(), kSteps) {}

 private:
  at::Tensor loss_of(Mlp& model, const TensorData& batch) override {
    return torch::cross_entropy_loss(model->forward(batch.inputs), batch.targets);
  }
};

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
          .notes = notes<OwnNotes>};
}
