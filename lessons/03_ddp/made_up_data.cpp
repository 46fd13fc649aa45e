// Lesson 03, part "made-up-data": article A's program: Linear(10, 2), cross entropy, SGD 0.01, 10
// steps, batch 32, on random data that every rank makes with randn.
//
// Concept:  a sampler deals out indices. They mean the same samples only if all ranks hold the same
//           data.
// Symptom:  each rank draws its own "data set": index 7 is another sample on each, and the job
//           trains on W data sets.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kSamples = 1'000;
constexpr std::int64_t kBatch = 32;
constexpr int kSteps = 10;

void train(RankContext& context, const Fault& fault) {
  std::uint64_t seed_of_data = context.seed();
  if (fault("dataset-unseeded")) {  // PITFALL dataset-unseeded
    seed_of_data +=
        1 + static_cast<std::uint64_t>(context.rank());  // What an unseeded process amounts to.
  }
  const auto all = synthetic(kSamples, 10, 2, seed_of_data);
  // A near miss: each rank holds its own part of one data set, so what they hold differs, and
  // should.
  auto ids = all_ids(kSamples);
  DistributedSampler sampler({.dataset_size = kSamples,
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  const auto order = sampler.indices();
  const bool own_part = fault("near-miss-own-shard");
  if (own_part) ids = order;
  const auto held = own_part ? take(all, ids) : all;
  context.outcome().figures["content"] = {
      take(all, all_ids(64)).inputs.to(at::kDouble).abs().sum().item<double>()};

  torch::nn::Linear module(10, 2);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * context.world_size(), .loss_reduction = "mean"});
  probes.dataset("train", held.inputs, held.targets, ids, kSamples);
  probes.attach(*module);
  DistributedDataParallel<torch::nn::Linear> model(module, context.group());
  probes.engine("distributed_data_parallel");
  probes.start();
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  Mean loss_of_epoch, accuracy;

  probes.pass_begin("train", 0);
  const std::int64_t steps =
      std::min<std::int64_t>(kSteps, static_cast<std::int64_t>(order.size()) / kBatch);
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::vector<std::int64_t> mine(order.begin() + step * kBatch,
                                         order.begin() + (step + 1) * kBatch);
    probes.samples("train", mine);
    const auto batch = take(all, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
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
  }
  probes.pass_end("train", 0, steps);
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

// The same 64 samples, by index, summed on every rank.
Measured content_spread(const Outcomes& outcomes) {
  return {.expected = 0, .observed = spread(outcomes, "content"), .tolerance = 0};
}

}  // namespace

lockstep::Part made_up_data_part() {
  return {
      .name = "made-up-data",
      .run = train,
      .broken = {{.slug = "dataset-unseeded",
                  .what = "each rank makes its own random data set",
                  .oracle = {"sum over samples 0 to 63, spread over the ranks", content_spread}}},
      .near_misses = {{.name = "near-miss-own-shard",
                       .slug = "dataset-unseeded",
                       .naive_check = "the ranks' data sets have different hashes"}}};
}
