// Lesson 03, part "by-hand": what DDP does, in three steps that can be read.
//
// Concept:  1. rank 0's parameters go to everybody; 2. after backward, gradients are summed over
//           all ranks; 3. and divided by their number. Each rank's optimizer then takes the same
//           step.
// Symptom:  leave one out and no call fails: the copies are different models, or steps are W times
//           too long.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/models.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 10;           // article A's
constexpr double kLearningRate = 0.01;

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);

  // Every rank draws its own initial weights, as a program does that seeds each rank differently.
  const auto initial = [&](int rank) {
    torch::manual_seed(context.seed() + 1'000 * static_cast<std::uint64_t>(rank));
    return Mlp(784, 256, 10);
  };
  auto model = fault("near-miss-same-seed") ? initial(0) : initial(context.rank());
  model->to(context.device());
  if (fault("no-initial-broadcast")) {  // PITFALL no-initial-broadcast
    // Nothing: each rank goes on with its own weights.
  } else {
    const torch::NoGradGuard no_grad;
    // A near miss: nothing to broadcast where all ranks drew the same numbers.
    if (!fault("near-miss-same-seed"))
      for (auto& parameter : model->parameters()) broadcast(group, parameter);
  }
  auto reference = initial(0);  // one process, rank 0's weights, the global batch
  add_figure(context, "initial_distance",
             relative_distance(flat_parameters(*model), flat_parameters(*reference)));

  torch::optim::SGD optimizer(model->parameters(), kLearningRate);
  torch::optim::SGD reference_optimizer(reference->parameters(), kLearningRate);
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*model);
  probes.start();
  Mean loss_of_epoch, loss_of_reference, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    // Step k's global batch is the next kBatch * world_size samples; each rank takes every W-th of
    // them.
    std::vector<std::int64_t> mine, everyone;
    for (std::int64_t i = 0; i < kBatch * world_size; ++i) {
      everyone.push_back(step * kBatch * world_size + i);
      if (i % world_size == context.rank()) mine.push_back(everyone.back());
    }
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model->forward(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    // A near miss divides the loss instead of the sum of gradients: the same number in the end.
    const bool divide_loss = fault("near-miss-loss-divided");
    const auto loss = divide_loss ? each.mean() / world_size : each.mean();
    probes.loss(loss, each);
    loss.backward();

    if (fault("no-gradient-sync")) {  // PITFALL no-gradient-sync
      // Nothing: each rank follows its own gradient.
    } else if (!fault("near-miss-parameters-averaged")) {
      for (auto& parameter : model->parameters()) all_reduce(group, parameter.mutable_grad());
      if (fault("sum-not-mean")) {  // PITFALL sum-not-mean
        // Nothing: the sum of W mean gradients is W times too long.
      } else if (!divide_loss) {
        for (auto& parameter : model->parameters()) parameter.mutable_grad() /= world_size;
      }
    }
    const auto expected = gradient_of_batch(reference, take(data, everyone));
    if (step == 0 && !fault("near-miss-parameters-averaged"))
      add_figure(context, "gradient_scale", scale_of(flat_gradients(*model), expected));
    probes.gradients_ready();
    optimizer.step();
    if (fault("near-miss-parameters-averaged")) {
      // A near miss: after one plain SGD step from equal weights, mean weights are the mean
      // gradient's.
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) {
        all_reduce(group, parameter);
        parameter /= world_size;
      }
    }
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
    reference_optimizer.zero_grad();
    const auto whole = take(data, everyone);
    const auto reference_loss =
        torch::cross_entropy_loss(reference->forward(whole.inputs), whole.targets);
    reference_loss.backward();
    loss_of_reference.add(reference_loss);
    reference_optimizer.step();
  }
  add_figure(context, "final_distance",
             relative_distance(flat_parameters(*model), flat_parameters(*reference)));
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().reference_losses.push_back(loss_of_reference.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

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
      .near_misses = {
          {.name = "near-miss-same-seed",
           .slug = "no-initial-broadcast",
           .naive_check = "nothing is broadcast before the first step"},
          {.name = "near-miss-parameters-averaged",
           .slug = "no-gradient-sync",
           .naive_check = "no gradient is ever reduced"},
          {.name = "near-miss-loss-divided",
           .slug = "sum-not-mean",
           .naive_check = "the reduced gradient is W times the mean of the local ones"}}};
}
