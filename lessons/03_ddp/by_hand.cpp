// Lesson 03, part "by-hand": what DDP does, in three steps that can be read.
//
// Concept:  1. rank 0's parameters go to everybody; 2. after backward, gradients are summed over
//           all ranks; 3. and divided by their number. Each rank's optimizer then takes the same
//           step.
// Symptom:  leave one out and no call fails: the copies are different models, or steps are W times
//           too long.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 10;
constexpr double kLearningRate = 0.01;

// Weights as a rank draws them in a program that seeds each rank differently.
Mlp weights_of(int rank, std::uint64_t seed) {
  torch::manual_seed(seed + 1'000 * static_cast<std::uint64_t>(rank));
  return Mlp(784, 256, 10);
}

// A near miss: after one plain SGD step from equal weights, mean weights are the mean gradient's.
void average_parameters(c10d::ProcessGroup& group, Mlp& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    all_reduce(group, parameter);
    parameter /= group.getSize();
  }
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);

  auto model = weights_of(fault("near-miss-same-seed") ? 0 : rank, context.seed());
  model->to(context.device());
  if (fault("no-initial-broadcast")) {
    // Nothing: each rank goes on with its own weights.
  } else if (fault("near-miss-same-seed")) {
    // A near miss: all ranks drew the same weights.
  } else {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) broadcast(group, parameter);
  }
  SGD optimizer(model->parameters(), kLearningRate);

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    optimizer.zero_grad();
    const auto outputs = model->forward(batch.inputs.to(context.device()));
    auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    if (fault("near-miss-loss-divided")) loss = loss / world_size;
    loss.backward();

    if (fault("no-gradient-sync")) {
      // Nothing: each rank follows its own gradient.
    } else if (fault("near-miss-parameters-averaged")) {
      // A near miss: the weights are averaged below.
    } else {
      for (auto& parameter : model->parameters()) all_reduce(group, parameter.mutable_grad());
      if (fault("sum-not-mean")) {
        // Nothing: the sum of W mean gradients is W times too long.
      } else if (fault("near-miss-loss-divided")) {
        // A near miss: the loss was divided.
      } else {
        for (auto& parameter : model->parameters()) parameter.mutable_grad() /= world_size;
      }
    }
    optimizer.step();
    if (fault("near-miss-parameters-averaged")) average_parameters(group, model);
  }
}

// Beside it one process trains on the global batch, from rank 0's weights.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault)
      : Notes(job),
        averages_(fault("near-miss-parameters-averaged")),
        one_process_(weights_of(0, job.seed()), kLearningRate),
        data_(fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * job.world_size())) {}

  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    Notes::optimizer_made(optimizer);
    add_figure(context(), "initial_distance", distance());
  }
  void update_begins(torch::optim::Optimizer&) override {
    const auto batch = rows_of(data_, global_batch(step_, kBatch * context().world_size()));
    one_process_.backward(batch.inputs, batch.targets);
    if (step_++ == 0 && !averages_)
      add_figure(context(), "gradient_scale",
                 scale_of(flat_gradients(parameters()), flat_gradients(*one_process_.model())));
    one_process_.step();
  }
  void finish() override {
    Notes::finish();
    add_figure(context(), "final_distance", distance());
    context().outcome().reference_losses.push_back(one_process_.mean_loss());
  }

 private:
  double distance() {
    return relative_distance(flat_parameters(parameters()), flat_parameters(*one_process_.model()));
  }

  bool averages_;
  OneProcess<Mlp> one_process_;
  TensorData data_;
  int step_ = 0;
};

Measured initial_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "initial_distance"), .tolerance = 0};
}

// Ten float32 SGD steps in another order of summation end less than 1e-6 apart.
Measured final_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "final_distance"), .tolerance = 1e-4};
}

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part by_hand_part() {
  return {
      .name = "by-hand",
      .run = train,
      .broken = {{.slug = "no-initial-broadcast",
                  .what = "replicas start from different weights",
                  .oracle = {"initial weights, distance from rank 0's", initial_distance}},
                 {.slug = "no-gradient-sync",
                  .what = "no all-reduce: each rank follows its own gradient",
                  .oracle = {"weights after 10 steps, distance from one process", final_distance}},
                 {.slug = "sum-not-mean",
                  .what = "gradients summed over the ranks and not divided",
                  .oracle = {"gradient over one process's gradient", gradient_scale}}},
      .near_misses = {{.name = "near-miss-same-seed",
                       .slug = "no-initial-broadcast",
                       .naive_check = "nothing is broadcast before the first step"},
                      {.name = "near-miss-parameters-averaged",
                       .slug = "no-gradient-sync",
                       .naive_check = "no gradient is ever reduced"},
                      {.name = "near-miss-loss-divided",
                       .slug = "sum-not-mean",
                       .naive_check =
                           "the reduced gradient is W times the mean of the local ones"}},
      .notes = notes<OwnNotes>};
}
