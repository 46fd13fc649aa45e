// Lesson 03, part "wrapper": the same through DistributedDataParallel. Article B's batch: 64 per
// rank.
//
// Concept:  the wrapper compares and broadcasts the parameters when it is made, and its forward()
//           arms the reduction that backward() then runs, bucket by bucket. It already divides by
//           the world size.
// Symptom:  call the module instead of the wrapper and nothing is armed; divide the loss as well
//           and steps are W times too short.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 64;  // per rank
constexpr int kSteps = 8;
constexpr double kLearningRate = 0.01;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  std::int64_t hidden = 128;
  if (fault("parameters-differ-across-ranks")) {        // PITFALL parameters-differ-across-ranks
    if (context.rank() == world_size - 1) hidden += 1;  // One rank was given another configuration.
  }
  Mlp module(784, hidden, 10);
  module->to(context.device());
  Mlp reference(784, 128, 10);
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.attach(*module);

  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  copy_parameters(*module, *reference);
  torch::optim::SGD optimizer(model.parameters(), kLearningRate);
  torch::optim::SGD reference_optimizer(reference->parameters(), kLearningRate);
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.start();
  Mean loss_of_epoch, loss_of_reference, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::int64_t> mine, everyone;
    for (std::int64_t i = 0; i < kBatch * world_size; ++i) {
      everyone.push_back(step * kBatch * world_size + i);
      if (i % world_size == context.rank()) mine.push_back(everyone.back());
    }
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    const auto inputs = batch.inputs.to(context.device());
    const auto targets = batch.targets.to(context.device());
    optimizer.zero_grad();

    at::Tensor outputs;
    if (fault("forward-bypasses-wrapper")) {  // PITFALL forward-bypasses-wrapper
      outputs = module->forward(inputs);
    } else {
      outputs = model(inputs);
    }
    const auto each = torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
    at::Tensor loss;
    if (fault("double-average")) {  // PITFALL double-average
      loss = each.mean() / world_size;
    } else {
      // A near miss: the sum over the samples, divided by how many there are, is the mean once.
      loss = fault("near-miss-sum-over-count") ? each.sum() / kBatch : each.mean();
    }
    probes.loss(loss, each);
    loss.backward();

    const auto whole = take(data, everyone);
    reference_optimizer.zero_grad();
    const auto reference_loss =
        torch::cross_entropy_loss(reference->forward(whole.inputs), whole.targets);
    reference_loss.backward();
    loss_of_reference.add(reference_loss);
    if (step == 0)
      add_figure(context, "gradient_scale",
                 scale_of(flat_gradients(*module), flat_gradients(*reference)));
    reference_optimizer.step();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
    add_figure(context, "distance",
               relative_distance(flat_parameters(*module), flat_parameters(*reference)));
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().reference_losses.push_back(loss_of_reference.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

Measured final_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "distance"), .tolerance = 1e-4};
}

Measured steps_done(const Outcomes& outcomes) {
  double fewest = kSteps;
  for (const auto& outcome : outcomes) {
    const auto found = outcome.figures.find("distance");
    fewest = std::min(
        fewest, found == outcome.figures.end() ? 0.0 : static_cast<double>(found->second.size()));
  }
  return {.expected = kSteps, .observed = fewest, .tolerance = 0};
}

}  // namespace

lockstep::Part wrapper_part() {
  return {.name = "wrapper",
          .run = train,
          .broken = {{.slug = "forward-bypasses-wrapper",
                      .what = "calls the module's forward, not the wrapper's",
                      .oracle = {"weights, largest distance from one process", final_distance}},
                     {.slug = "double-average",
                      .what = "divides the loss by W though DDP averages",
                      .oracle = {"gradient over one process's gradient", gradient_scale}},
                     {.slug = "parameters-differ-across-ranks",
                      .what = "the last rank has another layer size",
                      .oracle = {"steps done by the slowest rank", steps_done},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-sum-over-count",
                           .slug = "double-average",
                           .naive_check = "the loss is divided by hand before DDP averages"}}};
}
