// Lesson 14, part "freezing": fine-tuning, with the first layer frozen.
//
// Concept:  when it is made, the engine lists the parameters that require a gradient. Freeze first,
//           then wrap; and wrap again when you freeze more.
// Symptom:  frozen after wrapping: the engine waits for gradients that never come. Its bucket, the
//           only one here, is not reduced, and the next forward says so. (Thawed after wrapping is
//           worse: the layer is never reduced, and the replicas drift apart without an error.)
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 4;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  Mlp reference(784, 64, 10);
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);

  // A near miss: frozen after wrapping, and the engine looks for what is unused.
  const bool looked_for = fault("near-miss-frozen-and-looked-for");
  // A near miss: everything is trained for two steps; then the layer is frozen, and wrapped again.
  const bool in_two_phases = fault("near-miss-wrapped-again");
  std::optional<DistributedDataParallel<Mlp>> model;
  const auto wrap = [&] {
    model.emplace(module, context.group(), DdpOptions{.find_unused_parameters = looked_for});
    probes.engine("distributed_data_parallel");
  };
  const auto freeze = [&] {
    for (auto* net : {&module, &reference})
      for (auto& parameter : (*net)->fc1->parameters()) parameter.requires_grad_(false);
    probes.attach(*module);
  };
  if (in_two_phases) wrap();
  if (fault("frozen-after-wrapping")) {  // PITFALL frozen-after-wrapping
    wrap();
    freeze();
  } else if (!in_two_phases) {
    if (looked_for) wrap();
    freeze();
    if (!looked_for) wrap();
  }
  copy_parameters(*module, *reference);
  torch::optim::SGD optimizer(module->parameters(), 0.1);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  probes.start();
  Mean loss_of_epoch, loss_of_reference, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    reference_optimizer.zero_grad();
    if (in_two_phases && step == 2) {
      freeze();
      wrap();
    }
    const auto ids = batch_ids(kBatch, step, context.rank(), world_size);
    probes.samples("train", ids);
    const auto batch = take(data, ids);
    const auto outputs = (*model)(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);

    const auto whole = take(data, global_ids(kBatch, step, world_size));
    const auto reference_loss =
        torch::cross_entropy_loss(reference->forward(whole.inputs), whole.targets);
    reference_loss.backward();
    loss_of_reference.add(reference_loss);
    reference_optimizer.step();
    add_figure(context, "distance",
               relative_distance(flat_parameters(*module), flat_parameters(*reference)));
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().reference_losses.push_back(loss_of_reference.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured steps(const Outcomes& outcomes) {
  return right_steps(outcomes, kSteps);
}

}  // namespace

lockstep::Part freezing_part() {
  return {.name = "freezing",
          .run = train,
          .broken = {{.slug = "frozen-after-wrapping",
                      .what = "a layer is frozen after the engine counted its parameters",
                      .oracle = {"steps with one process's weights, of the rank with the fewest",
                                 steps},
                      .crashes = true,
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-frozen-and-looked-for",
                           .slug = "frozen-after-wrapping",
                           .naive_check = "the engine holds parameters that are not trained"},
                          {.name = "near-miss-wrapped-again",
                           .slug = "frozen-after-wrapping",
                           .naive_check = "requires_grad changes after the wrapper was made"}}};
}
