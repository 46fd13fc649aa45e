// Lesson 03, part "made-up-data": Linear(10, 2), cross entropy, SGD 0.01, 10 steps, batch 32, on
// random data that every rank makes with randn.
//
// Concept:  a sampler deals out indices. They mean the same samples only if all ranks hold the same
//           data.
// Symptom:  each rank draws its own "data set": index 7 is another sample on each, and the job
//           trains on W data sets.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <algorithm>

namespace {

using namespace lockstep;

constexpr std::int64_t kSamples = 1'000;
constexpr std::int64_t kBatch = 32;
constexpr int kSteps = 10;

TensorData made_up_data(RankContext& context, const Fault& fault) {
  if (fault("dataset-unseeded")) {
    // A process that seeds nothing draws as from a seed of its own.
    const auto seed_of_rank = context.seed() + 1 + static_cast<std::uint64_t>(context.rank());
    return synthetic(kSamples, 10, 2, seed_of_rank);
  } else {
    return synthetic(kSamples, 10, 2, context.seed());
  }
}

// A near miss: each rank holds its own part of one data set, so what they hold differs, and should.
TensorData part_of(const TensorData& all, const std::vector<std::int64_t>& ids) {
  auto part = rows_of(all, ids);
  part.ids = ids;
  part.global_size = all.size();
  return part;
}

void train(RankContext& context, const Fault& fault) {
  context.intent({.global_batch = kBatch * context.world_size(), .loss_reduction = "mean"});
  const auto data = made_up_data(context, fault);
  DistributedSampler sampler({.dataset_size = kSamples,
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  const bool own_part = fault("near-miss-own-shard");
  const auto part = own_part ? part_of(data, sampler.indices()) : data;

  torch::nn::Linear module(10, 2);
  module->to(context.device());
  DistributedDataParallel<torch::nn::Linear> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);

  const auto batches = sampler.batches(kBatch, /*drop_last_batch=*/true);
  const auto steps = std::min<std::size_t>(kSteps, batches.size());
  for (std::size_t step = 0; step < steps; ++step) {
    // In its own part a rank's next batch is simply the next rows.
    const auto batch = own_part ? take(part, global_batch(static_cast<std::int64_t>(step), kBatch))
                                : take(data, batches[step]);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
    optimizer.step();
  }
}

// What the rank's data set has at index 0 to 63.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault) : Notes(job) {
    const auto head = rows_of(made_up_data(job, fault), all_ids(64));
    add_figure(job, "content", head.inputs.to(at::kDouble).abs().sum().item<double>());
  }
};

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
                       .naive_check = "the ranks' data sets have different hashes"}},
      .notes = notes<OwnNotes>};
}
