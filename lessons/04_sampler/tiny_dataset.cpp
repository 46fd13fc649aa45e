// Lesson 04, part "tiny-dataset": fewer samples than ranks, or than a batch.
//
// Concept:  padding to a multiple of W must wrap around the data set as often as it takes; and a
//           shard that is smaller than a batch is still a batch.
// Symptom:  LibTorch's random sampler adds the head once only: with W > 2N it deals indices past
//           the end. With drop_last on the batches, such a rank has no batch at all, and its mean
//           loss is 0 / 0.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/data/samplers/distributed.h>

#include <algorithm>

namespace {

using namespace lockstep;

constexpr std::int64_t kSamples = 1;
constexpr std::int64_t kBatch = 32;

std::vector<std::vector<std::int64_t>> deal(RankContext& context, const Fault& fault) {
  if (fault("padding-overruns")) {
    Watched<torch::data::samplers::DistributedRandomSampler> sampler(kSamples, context.world_size(),
                                                                     context.rank());
    std::vector<std::vector<std::int64_t>> batches;
    while (const auto batch = sampler.next(kBatch))
      batches.emplace_back(batch->begin(), batch->end());
    return batches;
  } else {
    const DistributedSampler sampler({.dataset_size = kSamples,
                                      .num_replicas = context.world_size(),
                                      .rank = context.rank(),
                                      .seed = context.seed()});
    return fault("empty-shard") ? sampler.batches(kBatch, /*drop_last_batch=*/true)
                                : sampler.batches(kBatch);
  }
}

void train(RankContext& context, const Fault& fault) {
  Trainer trainer(context, fashion_mnist_or_synthetic(Split::train, kSamples));
  for (const auto& ids : deal(context, fault)) trainer.step(ids);
}

// Beside it: a rank that was dealt no batch has none to count, and a mean loss of 0 / 0.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void finish() override {
    Notes::finish();
    auto& outcome = context().outcome();
    if (outcome.figures.contains("batches")) return;
    add_figure(context(), "batches", 0);
    outcome.losses.push_back(Mean().value());
    outcome.accuracy.push_back(Mean().value());
  }
};

Measured largest_index(const Outcomes& outcomes) {
  std::int64_t largest_id = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.ids.find("drawn"); found != outcome.ids.end())
      for (const auto id : found->second.at(0)) largest_id = std::max(largest_id, id);
  return {.expected = kSamples - 1, .observed = static_cast<double>(largest_id), .tolerance = 0};
}

// A rank without a batch reports a mean loss of 0 / 0.
Measured fewest_batches(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "batches"), .tolerance = 0};
}

}  // namespace

lockstep::Part tiny_dataset_part() {
  return {.name = "tiny-dataset",
          .run = train,
          .broken = {{.slug = "padding-overruns",
                      .what = "LibTorch's sampler pads once though W > 2N",
                      .oracle = {"largest index dealt", largest_index},
                      .crashes = true,
                      .min_world_size = 3},
                     {.slug = "empty-shard",
                      .what = "drop_last on a shard smaller than a batch",
                      .oracle = {"batches of the rank that had the fewest", fewest_batches},
                      .min_world_size = 1}},
          .notes = notes<OwnNotes>};
}
