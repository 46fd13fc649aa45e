// Lesson 08, part "scaling": an epoch on W ranks has 1/W of the updates.
//
// Concept:  each update goes along the mean of W gradients. While the weights change little, it
//           points where W updates of one rank would lead, and is about as long as one of them. The
//           linear rule makes it W times as long (SGD; Goyal et al. 2017).
// Symptom:  with the rate that suited one rank, an epoch moves the weights about 1/W of the way.
//           Nothing fails.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr std::int64_t kUpdates = 24;
constexpr double kReferenceRate = 0.002;  // it suits one rank

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const std::int64_t global_batch = kBatch * world_size;
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

  double rate = kReferenceRate;
  // A near miss keeps the rate and sums the ranks' losses: the gradient is W times as long instead.
  const bool summed = fault("near-miss-summed-loss");
  if (fault("lr-not-scaled")) {  // PITFALL lr-not-scaled
    // Nothing: the rate that suited one rank.
  } else if (!summed) {
    rate *= world_size;
  }
  torch::optim::SGD optimizer(model.parameters(), rate);
  probes.start();
  Mean loss_of_epoch, accuracy;
  for (std::int64_t update = 0; update < kUpdates; ++update) {
    std::vector<std::int64_t> mine;
    for (std::int64_t i = context.rank(); i < global_batch; i += world_size)
      mine.push_back(update * global_batch + i);
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    const auto targets = batch.targets.to(context.device());
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
    const auto loss = summed ? each.mean() * world_size : each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1) == targets);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());

  // One rank, the same data: W times as many updates of the reference rate.
  torch::optim::SGD reference(one_rank->parameters(), kReferenceRate);
  for (std::int64_t update = 0; update < kUpdates * world_size; ++update) {
    const auto first = update * kBatch;
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

// How far an epoch moves the weights. Not exactly 1: the path is no straight line.
Measured way(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "way"), .tolerance = 0.2};
}

}  // namespace

lockstep::Part scaling_part() {
  return {.name = "scaling",
          .run = train,
          .broken = {{.slug = "lr-not-scaled",
                      .what = "W times the batch at the rate of one rank",
                      .oracle = {"the weights' way in an epoch over one rank's", way}}},
          .near_misses = {{.name = "near-miss-summed-loss",
                           .slug = "lr-not-scaled",
                           .naive_check = "the optimizer's rate is not multiplied by W"}}};
}
