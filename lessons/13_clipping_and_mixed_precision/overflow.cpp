// Lesson 13, part "overflow": one rank's gradient overflows. Who leaves the step out? The scaler is
// written out here; the one of train/grad_scaler.h asks the other ranks if it is given their group.
//
// Concept:  a step whose gradients are not finite is left out, and the scale halved. Replicas stay
//           equal only if all ranks decide alike whether to update.
// Symptom:  each rank looks at its own gradients. The one that overflowed stays behind by an
//           update, the replicas drift apart, and nothing stops. (If the skip leaves out a
//           collective too, the others wait: lesson 09.)
#include <lockstep/lesson/figures.h>
#include <lockstep/train/grad_scaler.h>

#include "gradients.h"
#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr int kDamagedStep = 2;
constexpr float kDamaged = 1e6F;  // float16 ends at 65504

// Collective: true on all ranks where it is true on one.
bool on_any_rank(c10d::ProcessGroup& group, bool value) {
  auto flag = at::full({1}, value ? 1 : 0, at::device(device_of(group)).dtype(at::kFloat));
  all_reduce(group, flag, c10d::ReduceOp::MAX);
  return flag.item<float>() != 0;
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  torch::manual_seed(context.seed());
  Mlp model(784, 64, 10);
  model->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.attach(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  probes.start();
  double scale = 1024, updates = 0;
  Mean loss_of_epoch, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    const auto mine = global_batch(step, kBatch, context.rank(), world_size).mine;
    probes.samples("train", mine);
    auto batch = take(data, mine);
    if (step == kDamagedStep && context.rank() == world_size - 1) batch.inputs[0].fill_(kDamaged);
    optimizer.zero_grad();
    at::Tensor each, outputs;
    {
      const Autocast autocast(context.device().type(), at::kHalf);
      outputs = model->forward(batch.inputs.to(context.device()));
      each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                       at::Reduction::None);
    }
    const auto scaled = each.mean() * scale;
    probes.loss(scaled, each);
    scaled.backward();
    const auto gradients = gradients_of(*model);
    for (auto gradient : gradients) gradient /= scale;

    // A near miss asks nobody, and looks once the gradients are reduced: a NaN has reached all ranks.
    const bool look_later = fault("near-miss-checked-after-reduction");
    const bool found = !are_finite(gradients);
    bool skip = found;
    if (fault("local-overflow-skip")) {  // PITFALL local-overflow-skip
      // Nothing: each rank goes by what it has found itself.
    } else if (!look_later) {
      skip = on_any_rank(group, found);
    }
    // Everyone takes part in the reduction, whatever it has found: nobody waits.
    if (found && !look_later)
      for (auto gradient : gradients) gradient.zero_();
    average(group, gradients);
    if (look_later) skip = !are_finite(gradients);

    probes.gradients_ready();
    probes.scaled_step(scale, found, !skip);
    if (skip) {
      scale /= 2;
      continue;
    }
    optimizer.step();
    probes.updated(optimizer);
    ++updates;
    if (found) continue;  // this rank's loss is a NaN
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
  }
  add_figure(context, "updates", updates);
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured spread_of_updates(const Outcomes& outcomes) {
  return {.expected = 0, .observed = spread(outcomes, "updates"), .tolerance = 0};
}

}  // namespace

lockstep::Part overflow_part() {
  return {.name = "overflow",
          .run = train,
          .broken = {{.slug = "local-overflow-skip",
                      .what = "a rank whose gradient overflows leaves the step out by itself",
                      .oracle = {"updates made, spread over the ranks", spread_of_updates}}},
          .near_misses = {{.name = "near-miss-checked-after-reduction",
                           .slug = "local-overflow-skip",
                           .naive_check = "no rank asks the others before it leaves a step out"}}};
}
