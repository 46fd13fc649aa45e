// Lesson 08, part "adam": the linear rule is SGD's.
//
// Concept:  Adam divides by the gradient's size, so its first step is lr long in every weight, however many
//           samples were averaged. Averaging over more of them only makes the direction surer; the rule that
//           fits is the square root of the batch (Malladi et al. 2022), or none.
// Symptom:  lr x W makes every step W times as long. It may even train well: article D does so. It is not
//           what the rule promises, and has to be measured (benchmarks/lr_scaling).
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>

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

    // The first step, beside the reference rate's on the same global batch.
    torch::cross_entropy_loss(one_rank->forward(data.inputs.narrow(0, 0, global_batch)),
                              data.targets.narrow(0, 0, global_batch))
        .backward();
    reference.step();
    const auto moved = [&](const Mlp& trained) {
      return (flat_parameters(*trained) - start).norm().item<double>();
    };
    add_figure(context, "first_step", moved(module) / moved(one_rank));
    add_figure(context, "growth", growth);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured first_step(const Outcomes& outcomes) {
  const double root = std::sqrt(largest(outcomes, "growth"));
  return {.expected = root, .observed = largest(outcomes, "first_step"), .tolerance = 0.02 * root};
}

}  // namespace

lockstep::Part adam_part() {
  return {
      .name = "adam",
      .run = train,
      .broken = {{.slug = "linear-rule-with-adam",
                  .what = "W times the batch at W times the rate, under Adam",
                  .oracle = {"length of the first step over the reference rate's", first_step}}},
      .near_misses = {{.name = "near-miss-accumulation",
                       .slug = "linear-rule-with-adam",
                       .naive_check = "the optimizer is Adam and its rate is W times as large"}}};
}
