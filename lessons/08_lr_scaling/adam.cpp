// Lesson 08, part "adam": the linear rule was found for SGD.
//
// Concept:  Adam divides by the gradient's size, so its first step is about lr in every weight that
//           has a gradient, however many samples were averaged. More of them only make the
//           direction surer. Where noise dominates the gradient, theory gives the square root of
//           the batch's growth (Malladi et al. 2022, who also change the betas and epsilon).
// Symptom:  lr x W makes the first step W times as long: longer than the W steps of one rank that it
//           replaces, which do not all point the same way. It may train well all the same, and has
//           to be measured (benchmarks/lr_scaling).
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;   // per rank, and backward
constexpr std::int64_t kUpdates = 7;  // on 16 ranks 16 * 16 batches each: 57,344 samples of 60,000
constexpr double kReferenceRate = 3e-4;  // it suits one rank

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  // A near miss adds up W batches on each rank before it updates: W * W batches, whose root is W.
  const int backwards = fault("near-miss-accumulation") ? world_size : 1;
  const std::int64_t global_batch = kBatch * world_size * backwards;
  const auto data = fashion_mnist_or_synthetic(Split::train, global_batch * kUpdates);
  Mlp module(784, 32, 10), one_rank(784, 32, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.reference_lr = kReferenceRate, .reference_world_size = 1});
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  copy_parameters(*module, *one_rank);
  const auto start = flat_parameters(*module);

  const double growth = world_size * backwards;  // of the global batch
  double rate = kReferenceRate;
  if (fault("linear-rule-with-adam")) {  // PITFALL linear-rule-with-adam
    rate *= growth;
  } else {
    rate *= std::sqrt(growth);
  }
  Adam optimizer(model.parameters(), rate);
  Adam reference(one_rank->parameters(), kReferenceRate);
  probes.start();
  Mean loss_of_epoch, accuracy;
  for (std::int64_t update = 0; update < kUpdates; ++update) {
    optimizer.zero_grad();
    for (int part = 0; part < backwards; ++part) {
      std::vector<std::int64_t> mine;
      for (std::int64_t i = 0; i < kBatch; ++i)
        mine.push_back(update * global_batch + (i * backwards + part) * world_size +
                       context.rank());
      probes.samples("train", mine);
      const auto batch = take(data, mine);
      const auto targets = batch.targets.to(context.device());
      std::optional<NoSync> no_sync;
      if (part + 1 < backwards) no_sync.emplace(model.engine());
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto each = torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
      const auto loss = each.mean() / backwards;
      probes.loss(loss, each);
      loss.backward();
      loss_of_epoch.add(each);
      accuracy.add(outputs.argmax(1) == targets);
    }
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    if (update > 0) continue;

    // One rank, the same samples: as many updates as that global batch has batches.
    for (std::int64_t first = 0; first < global_batch; first += kBatch) {
      reference.zero_grad();
      torch::cross_entropy_loss(one_rank->forward(data.inputs.narrow(0, first, kBatch)),
                                data.targets.narrow(0, first, kBatch))
          .backward();
      reference.step();
    }
    const auto moved = [&](const Mlp& trained) {
      return (flat_parameters(*trained) - start).norm().item<double>();
    };
    add_figure(context, "way", moved(module) / moved(one_rank));
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

// What the linear rule rests on: one update goes as far as the updates of one rank that it replaces.
// 0.2: farther by a fifth. Not as far is no fault: a shorter step.
Measured too_far(const Outcomes& outcomes) {
  return {.expected = 0, .observed = std::max(largest(outcomes, "way") - 1, 0.0), .tolerance = 0.1};
}

}  // namespace

lockstep::Part adam_part() {
  return {
      .name = "adam",
      .run = train,
      .broken =
          {{.slug = "linear-rule-with-adam",
            .what = "W times the batch at W times the rate, under Adam",
            .oracle = {"how much farther an update goes than those of one rank that it replaces",
                       too_far}}},
      .near_misses = {{.name = "near-miss-accumulation",
                       .slug = "linear-rule-with-adam",
                       .naive_check = "the optimizer is Adam and its rate is W times as large"}}};
}
