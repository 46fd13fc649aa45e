// Lesson 13, part "scaling": clipping a gradient whose loss was scaled.
//
// Concept:  float16 rounds numbers below 3e-8 to zero. So the loss is multiplied by a large scale,
//           and the gradients are divided by it before they are used. max_norm is meant for
//           gradients without the scale.
// Symptom:  clipped before they are divided, all gradients here are cut to max_norm, and then
//           divided: the optimizer gets max_norm / scale on every batch. The loss hardly moves.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/grad_scaler.h>

#include <cmath>

#include "gradients.h"
#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr double kMaxNorm = 0.1;  // shorter than any gradient here
constexpr double kScale = 1024;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  torch::manual_seed(context.seed());
  Mlp module(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), 0.5);
  GradScaler scaler({.init_scale = kScale});
  probes.start();
  Mean loss_of_epoch, accuracy;
  const auto clip_to = [&](double max_norm) {
    const auto gradients = gradients_of(*module);
    const double norm = norm_of(gradients);
    probes.clip(max_norm, norm);
    clip(gradients, max_norm, norm);
  };

  for (int step = 0; step < kSteps; ++step) {
    const auto ids = global_batch(step, kBatch, context.rank(), world_size);
    probes.samples("train", ids.mine);
    const auto batch = take(data, ids.mine);
    optimizer.zero_grad();
    at::Tensor each, outputs;
    {
      const Autocast autocast(context.device().type(), at::kHalf);
      outputs = model(batch.inputs.to(context.device()));
      each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                       at::Reduction::None);
    }
    const auto scaled = scaler.scale(each.mean());
    probes.loss(scaled, each);
    scaled.backward();  // DDP reduces

    if (fault("clip-before-unscale")) {  // PITFALL clip-before-unscale
      clip_to(kMaxNorm);
      scaler.unscale_(optimizer);
    } else if (fault("near-miss-scaled-norm")) {
      clip_to(kMaxNorm * scaler.get_scale());  // A near miss: what is allowed is scaled as well.
      scaler.unscale_(optimizer);
    } else {
      scaler.unscale_(optimizer);
      clip_to(kMaxNorm);
    }
    const double expected = std::min(
        kMaxNorm, gradient_of_batch(module, take(data, ids.everyone)).norm().item<double>());
    add_figure(context, "norm_ratio", norm_of(gradients_of(*module)) / expected);
    probes.gradients_ready();
    const double scale = scaler.get_scale();
    const bool updates = scaler.step(optimizer);
    probes.scaled_step(scale, scaler.found_nonfinite(optimizer), updates);
    if (updates) probes.updated(optimizer);
    scaler.update();
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured norm_ratio(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "norm_ratio"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part scaling_part() {
  return {.name = "scaling",
          .run = train,
          .broken = {{.slug = "clip-before-unscale",
                      .what = "gradients are clipped first, then divided by the loss's scale",
                      .oracle = {"norm the optimizer gets, over one process's clipped norm",
                                 norm_ratio},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-scaled-norm",
                           .slug = "clip-before-unscale",
                           .naive_check = "the clip comes before unscale_()"}}};
}
