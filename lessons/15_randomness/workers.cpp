// Lesson 15, part "workers": a loader's workers, and the generator they got.
//
// Concept:  LibTorch's loader copies the data set into each of its worker threads; Python's forks
//           the process. What the data set owns is copied with it: a generator too, in its state.
// Symptom:  each worker draws the same numbers, for other images. With k workers only 1/k of the
//           draws are different. Seeding by rank does not help: it is within a rank.
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/seeding.h>
#include <torch/data.h>

#include <barrier>

#include "augment.h"
#include "parts.h"

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
  Images(TensorData all, std::uint64_t seed_in, int rank, const Fault& form)
      : data(std::move(all)), fault(form), seed(seed_in), generator(rank_seed(seed, rank)) {}

  Augmented get_batch(torch::ArrayRef<std::size_t> indices) override {
    // Each worker takes one batch a round, as equally fast ones do.
    all_have_one->arrive_and_wait();
    Augmented result;
    std::vector<at::Tensor> rows;
    for (const auto index : indices) {
      const auto id = static_cast<std::int64_t>(index);
      result.ids.push_back(id);
      if (fault("worker-streams-copied")) {  // PITFALL worker-streams-copied
        rows.push_back(draw(generator));     // This worker's copy, which began as all others did.
      } else {
        // A near miss draws from the copies too, each time from where the sample's own stream begins;
        // another makes one draw for the whole batch.
        const bool once = fault("near-miss-one-draw-a-batch");
        std::mt19937_64 own(sample_seed(seed, *epoch, once ? result.ids.front() : id));
        if (fault("near-miss-copies-seeded-by-sample")) {
          generator = own;
          rows.push_back(draw(generator));
        } else {
          rows.push_back(draw(own));
        }
      }
    }
    result.numbers = at::stack(rows);
    result.batch = take(data, result.ids);
    result.batch.inputs = augment(result.batch.inputs, result.numbers);
    return result;
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
  auto& probes = context.probes();
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kBatches * context.world_size());
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  TracedTrainer trainer(context, data);
  const Images images(data, context.seed(), context.rank(), fault);
  const auto loader = torch::data::make_data_loader(
      images, sampler, torch::data::DataLoaderOptions().batch_size(kBatch).workers(kWorkers));

  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    *images.epoch = epoch;  // No worker is at work now: the last pass is over.
    probes.set_epoch(epoch);
    trainer.begin_epoch(epoch);
    for (const auto& augmented : *loader) {
      probes.random_numbers(augmented.ids, augmented.numbers);
      write_down(context, augmented.numbers);
      trainer.step(augmented.batch, augmented.ids);
    }
    trainer.end_epoch();
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
                       .naive_check = "several samples of a rank get the same numbers"}}};
}
