// Lesson 14, part "two-losses": two losses on one trunk.
//
// Concept:  forward() arms one reduction, which waits for one gradient of each parameter. Add the
//           losses and go backward once.
// Symptom:  two backwards from one forward: the first brings the trunk's gradient and one head's;
//           the second brings the other head's and the trunk's again, and the engine throws.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"
#include "two_heads.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 6;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  TwoHeads module;
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  // A near miss: a forward and a backward for each loss, the first of them without a reduction.
  const bool apart = fault("near-miss-backwards-apart");
  DistributedDataParallel<TwoHeads> model(module, context.group(),
                                          {.find_unused_parameters = apart});
  probes.engine("distributed_data_parallel");
  TwoHeads reference;
  copy_parameters(*module, *reference);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  probes.start();
  Mean loss_of_epoch, loss_of_reference, accuracy;
  const auto backward = [&](const at::Tensor& each, bool keep_graph = false) {
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward({}, keep_graph);
    loss_of_epoch.add(each);
  };

  for (int step = 0; step < kSteps; ++step) {
    const auto ids = batch_ids(kBatch, step, context.rank(), world_size);
    probes.samples("train", ids);
    const auto batch = take(data, ids);
    const auto inputs = batch.inputs.to(context.device());
    optimizer.zero_grad();
    if (apart) {
      const NoSync no_sync(model.engine());
      probes.sync_gradients(false);
      backward(type_losses(std::get<0>(model(inputs)), batch));
      probes.sync_gradients(true);
    }
    const auto [type, shoe] = model(inputs);
    if (fault("parameter-ready-twice")) {  // PITFALL parameter-ready-twice
      backward(type_losses(type, batch), /*keep_graph=*/true);
      backward(shoe_losses(shoe, batch));
    } else {
      auto each = shoe_losses(shoe, batch);
      if (!apart) each = each + type_losses(type, batch);
      backward(each);
    }
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    accuracy.add(type.argmax(1).cpu() == batch.targets);

    const auto whole = take(data, global_ids(kBatch, step, world_size));
    const auto [whole_type, whole_shoe] = reference->forward(whole.inputs);
    reference_optimizer.zero_grad();
    const auto reference_loss =
        (type_losses(whole_type, whole) + shoe_losses(whole_shoe, whole)).mean();
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

lockstep::Part two_losses_part() {
  return {.name = "two-losses",
          .run = train,
          .broken = {{.slug = "parameter-ready-twice",
                      .what = "two backwards from one forward share the trunk",
                      .oracle = {"steps with one process's weights, of the rank with the fewest",
                                 steps},
                      .crashes = true,
                      .min_world_size = 1}},
          .near_misses = {
              {.name = "near-miss-backwards-apart",
               .slug = "parameter-ready-twice",
               .naive_check = "a parameter's gradient comes from two backwards of one update"}}};
}
