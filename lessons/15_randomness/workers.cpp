// Lesson 15, part "workers": a loader's workers, and the generator they got.
//
// Concept:  LibTorch's loader copies the data set into each of its worker threads; Python's forks
//           the process. What the data set owns is copied with it: a generator too, in its state.
// Symptom:  each worker draws the same numbers, for other images. With k workers only 1/k of the
//           draws are different. Seeding by rank does not help: it is within a rank.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/seeding.h>
#include <torch/data.h>

#include <barrier>

#include "augment.h"

namespace {

using namespace lockstep;

constexpr std::size_t kWorkers = 2;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kBatches = 6;  // of a rank, in an epoch
static_assert(kBatches % kWorkers == 0, "a worker would wait for a batch that never comes");

struct Augmented {
  TensorData batch;
  std::vector<std::int64_t> ids;
  at::Tensor numbers;  // drawn for each image
};

// Images with their augmentation, as a loader's workers make them.
struct Images : torch::data::datasets::BatchDataset<Images, Augmented> {
  Images(TensorData all, std::uint64_t seed_in, int rank, const Fault& variant)
      : data(std::move(all)), fault(variant), seed(seed_in), generator(rank_seed(seed, rank)) {}

  Augmented get_batch(torch::ArrayRef<std::size_t> indices) override {
    // Each worker takes one batch a round, as equally fast ones do.
    all_have_one->arrive_and_wait();
    const std::vector<std::int64_t> ids(indices.begin(), indices.end());
    std::vector<at::Tensor> rows;
    for (const auto id : ids) {
      if (fault("worker-streams-copied")) {
        rows.push_back(draw(generator));  // This worker's copy, which began as all others did.
      } else if (fault("near-miss-copies-seeded-by-sample")) {
        // A near miss draws from the copies too, each time from where the sample's own stream
        // begins.
        generator.seed(sample_seed(seed, *epoch, id));
        rows.push_back(draw(generator));
      } else if (fault("near-miss-one-draw-a-batch")) {
        // Another near miss makes one draw for the whole batch.
        std::mt19937_64 of_batch(sample_seed(seed, *epoch, ids.front()));
        rows.push_back(draw(of_batch));
      } else {
        std::mt19937_64 own(sample_seed(seed, *epoch, id));
        rows.push_back(draw(own));
      }
    }
    const auto numbers = at::stack(rows);
    const auto batch = rows_of(data, ids);
    return {{augment(batch.inputs, numbers), batch.targets}, ids, numbers};
  }
  std::optional<std::size_t> size() const override { return data.inputs.size(0); }

  TensorData data;
  Fault fault;
  std::uint64_t seed;
  std::mt19937_64 generator;
  // Shared by the copies, where they must be.
  std::shared_ptr<std::int64_t> epoch = std::make_shared<std::int64_t>(0);
  std::shared_ptr<std::barrier<>> all_have_one = std::make_shared<std::barrier<>>(kWorkers);
};

void train(RankContext& context, const Fault& fault) {
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kBatches * context.world_size());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  Trainer trainer(context, data);
  const Images images(data, context.seed(), context.rank(), fault);
  const auto loader = torch::data::make_data_loader(
      images, sampler, torch::data::DataLoaderOptions().batch_size(kBatch).workers(kWorkers));

  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    *images.epoch = epoch;  // No worker is at work now: the last pass is over.
    for (const auto& augmented : *loader) {
      tell_taken(data, augmented.ids);  // take() would, but this was a worker's rows_of()
      tell_numbers(context, augmented.ids, augmented.numbers);
      trainer.step(augmented.batch);
    }
  }
}

}  // namespace

lockstep::Part workers_part() {
  return {
      .name = "workers",
      .run = train,
      .broken = {{.slug = "worker-streams-copied",
                  .what = "each loader worker draws from its copy of one generator",
                  .oracle = {"batches with random numbers of their own, over all ranks' batches",
                             different_draws},
                  .min_world_size = 1}},
      .near_misses = {{.name = "near-miss-copies-seeded-by-sample",
                       .slug = "worker-streams-copied",
                       .naive_check = "the workers' generators are copies of one"},
                      {.name = "near-miss-one-draw-a-batch",
                       .slug = "worker-streams-copied",
                       .naive_check = "several samples of a rank get the same numbers"}},
      .notes = notes<OfAugmented>};
}
