// Lesson 14, part "freezing": fine-tuning, with the first layer frozen.
//
// Concept:  when it is made, the engine lists the parameters that require a gradient. Freeze first,
//           then wrap; and wrap again when you freeze more.
// Symptom:  frozen after wrapping: the engine waits for gradients that never come. Its bucket, the
//           only one here, is not reduced, and the next forward says so. (Thawed after wrapping is
//           worse: the layer is never reduced, and the replicas drift apart without an error.)
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include "one_process.h"
#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 4;

using Model = DistributedDataParallel<Mlp>;

void freeze(torch::nn::Module& layer) {
  for (auto& parameter : layer.parameters()) parameter.requires_grad_(false);
}

Model wrapped_and_frozen(RankContext& context, Mlp& module, const Fault& fault) {
  if (fault("frozen-after-wrapping")) {
    Model model(module, context.group());
    freeze(*module->fc1);
    return model;
  } else if (fault("near-miss-frozen-and-looked-for")) {
    // A near miss: frozen after wrapping, and the engine looks for what is unused.
    Model model(module, context.group(), {.find_unused_parameters = true});
    freeze(*module->fc1);
    return model;
  } else if (fault("near-miss-wrapped-again")) {
    // A near miss: all is trained for two steps; then the layer is frozen, and wrapped again.
    return Model(module, context.group());
  } else {
    freeze(*module->fc1);
    return Model(module, context.group());
  }
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());

  auto model = wrapped_and_frozen(context, module, fault);
  SGD optimizer(module->parameters(), 0.1);

  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    if (fault("near-miss-wrapped-again") && step == 2) {
      freeze(*module->fc1);
      model = Model(module, context.group());
    }
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    const auto outputs = model(batch.inputs.to(context.device()));
    cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
    optimizer.step();
  }
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
                           .naive_check = "requires_grad changes after the wrapper was made"}},
          .notes = notes<OneProcessOfMlp>};
}
