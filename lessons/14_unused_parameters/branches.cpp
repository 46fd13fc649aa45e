// Lesson 14, part "branches": a head that some batches do not use.
//
// Concept:  the engine counts: a backward is done when every parameter's gradient has come. Where a
//           forward may leave some out, the engine must be told (find_unused_parameters): then it
//           finds them before backward and counts them itself.
// Symptom:  not told, the rank that left some out does not fill its bucket, the only one here. It
//           reduces nothing and goes on; the others wait inside backward. The rank's next forward
//           says that the last reduction did not finish.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"
#include "two_heads.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 6;
constexpr int kStepWithout = 2;  // in this step the last rank's batch does not use the shoe head

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  const auto has_shoes = [&](int step, int rank) {
    return step != kStepWithout || rank + 1 != world_size;
  };
  TwoHeads module;
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);

  // A near miss: nothing is looked for, and nothing is unused: the head counts zero times.
  const bool zero_times = fault("near-miss-zero-times");
  DdpOptions options;
  if (fault("unused-parameter")) {  // PITFALL unused-parameter
    options.find_unused_parameters = false;
  } else {
    options.find_unused_parameters = !zero_times;
  }
  DistributedDataParallel<TwoHeads> model(module, context.group(), options);
  probes.engine("distributed_data_parallel");
  TwoHeads reference;
  copy_parameters(*module, *reference);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  probes.start();
  Mean loss_of_epoch, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    const auto ids = batch_ids(kBatch, step, context.rank(), world_size);
    probes.samples("train", ids);
    const auto batch = take(data, ids);
    optimizer.zero_grad();
    const bool shoes = has_shoes(step, context.rank());
    const auto [type, shoe] = model(batch.inputs.to(context.device()), shoes || zero_times);
    auto each = type_losses(type, batch);
    if (shoes) each = each + shoe_losses(shoe, batch);
    if (!shoes && zero_times) each = each + 0 * shoe_losses(shoe, batch);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(type.argmax(1).cpu() == batch.targets);

    // One process: the mean over the ranks' batches, each with or without the shoe head.
    reference_optimizer.zero_grad();
    for (int rank = 0; rank < world_size; ++rank) {
      const auto theirs = take(data, batch_ids(kBatch, step, rank, world_size));
      const auto [their_type, their_shoe] = reference->forward(theirs.inputs);
      auto their_each = type_losses(their_type, theirs);
      if (has_shoes(step, rank)) their_each = their_each + shoe_losses(their_shoe, theirs);
      (their_each.mean() / world_size).backward();
    }
    reference_optimizer.step();
    add_figure(context, "distance",
               relative_distance(flat_parameters(*module), flat_parameters(*reference)));
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured steps(const Outcomes& outcomes) {
  return right_steps(outcomes, kSteps);
}

}  // namespace

lockstep::Part branches_part() {
  return {
      .name = "branches",
      .run = train,
      .broken = {{.slug = "unused-parameter",
                  .what = "one rank's batch leaves a head out, and the engine was not told",
                  .oracle = {"steps with one process's weights, of the rank with the fewest",
                             steps},
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-zero-times",
                       .slug = "unused-parameter",
                       .naive_check = "a batch has no use for a head, and nothing looks for it"}}};
}
