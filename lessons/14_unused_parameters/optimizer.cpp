// Lesson 14, part "optimizer": whose parameters the optimizer moves, and whose gradients it clears.
// Gradients are views into the engine's buckets here: no second copy of them is kept.
//
// Concept:  an optimizer holds tensors, not a model. Build it from the model that is wrapped, after
//           the last clone or replaced layer. LibTorch's optimizer.zero_grad() detaches gradients
//           in place, which a view does not allow: let the module clear them.
// Symptom:  an optimizer of a copy's parameters steps on, and the model's never move. zero_grad()
//           on a view throws in the second step, the first one that has gradients to clear.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 6;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group(), {.gradient_as_bucket_view = true});
  probes.engine("distributed_data_parallel");
  Mlp reference(784, 64, 10);
  copy_parameters(*module, *reference);

  std::vector<at::Tensor> to_move;
  if (fault(
          "optimizer-built-on-other-parameters")) {  // PITFALL optimizer-built-on-other-parameters
    to_move = module->clone()->parameters();         // Equal numbers, other tensors.
  } else {
    to_move = module->parameters();
  }
  torch::optim::SGD optimizer(to_move, 0.1);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  const auto start = flat_parameters(*module);
  probes.start();
  Mean loss_of_epoch, loss_of_reference, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    const auto ids = batch_ids(kBatch, step, context.rank(), world_size);
    probes.samples("train", ids);
    const auto batch = take(data, ids);
    if (fault("zero-grad-on-bucket-view")) {  // PITFALL zero-grad-on-bucket-view
      probes.zero_grad("optimizer");
      optimizer.zero_grad();
    } else if (fault("near-miss-zeroed-in-place")) {
      // A near miss: the views stay, and what they show is set to zero.
      probes.zero_grad("tensor");
      for (const auto& parameter : module->parameters())
        if (parameter.grad().defined()) parameter.grad().zero_();
    } else {
      probes.zero_grad("module");
      module->zero_grad();
    }
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    // A near miss: a warm-up that begins at a learning rate of zero, where nothing moves at first.
    if (fault("near-miss-warmup-from-zero"))
      for (auto* each_optimizer : {&optimizer, &reference_optimizer})
        each_optimizer->param_groups().front().options().set_lr(0.05 * (step / 2));
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);

    const auto whole = take(data, global_ids(kBatch, step, world_size));
    reference_optimizer.zero_grad();
    const auto reference_loss =
        torch::cross_entropy_loss(reference->forward(whole.inputs), whole.targets);
    reference_loss.backward();
    loss_of_reference.add(reference_loss);
    reference_optimizer.step();
    add_figure(context, "distance",
               relative_distance(flat_parameters(*module), flat_parameters(*reference)));
  }
  add_figure(context, "displacement",
             scale_of(flat_parameters(*module) - start, flat_parameters(*reference) - start));
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().reference_losses.push_back(loss_of_reference.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured displacement(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "displacement"), .tolerance = 1e-3};
}

Measured steps(const Outcomes& outcomes) {
  return right_steps(outcomes, kSteps);
}

}  // namespace

lockstep::Part optimizer_part() {
  return {
      .name = "optimizer",
      .run = train,
      .broken = {{.slug = "optimizer-built-on-other-parameters",
                  .what = "the optimizer holds the parameters of a copy",
                  .oracle = {"way the weights went over one process's way", displacement},
                  .min_world_size = 1},
                 {.slug = "zero-grad-on-bucket-view",
                  .what = "optimizer.zero_grad() on gradients that are views of buckets",
                  .oracle = {"steps with one process's weights, of the rank with the fewest",
                             steps},
                  .crashes = true,
                  .min_world_size = 1}},
      .near_misses = {{.name = "near-miss-warmup-from-zero",
                       .slug = "optimizer-built-on-other-parameters",
                       .naive_check = "parameters do not move though the optimizer steps"},
                      {.name = "near-miss-zeroed-in-place",
                       .slug = "zero-grad-on-bucket-view",
                       .naive_check = "gradients that are views of buckets are zeroed in place"}}};
}
