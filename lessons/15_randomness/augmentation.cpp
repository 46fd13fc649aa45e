// Lesson 15, part "augmentation": random where it must be, and equal where it must be.
//
// Concept:  all ranks need one seed to make equal models, and each rank its own seed after that.
//           Then the ranks' augmentations are independent of each other.
// Symptom:  nothing fails. Every rank shifts and mirrors its i-th image as all others do theirs;
//           dropout masks and noise agree too. Averaging over ranks does not average them out.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/seeding.h>

#include "augment.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kBatches = 6;  // of a rank, in an epoch

// A near miss: every sample has a stream of its own, whichever rank draws from it.
at::Tensor numbers_by_sample(std::uint64_t seed, std::int64_t epoch,
                             const std::vector<std::int64_t>& ids) {
  std::vector<at::Tensor> rows;
  for (const auto id : ids) {
    std::mt19937_64 own(sample_seed(seed, epoch, id));
    rows.push_back(draw(own));
  }
  return at::stack(rows);
}

void train(RankContext& context, const Fault& fault) {
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kBatches * context.world_size());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});

  torch::manual_seed(context.seed());  // The same on all ranks: equal models.
  Trainer trainer(context, data);
  if (fault("same-augmentation-everywhere")) {
    // The seed that made the models equal makes every later random number equal, too.
  } else if (fault("near-miss-equal-seeds")) {
    // A near miss leaves it at that, since no sample's numbers depend on it.
  } else {
    manual_seed_per_rank(context.seed(), context.rank());  // After the model is made.
  }

  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = take(data, ids);
      const auto numbers = fault("near-miss-equal-seeds")
                               ? numbers_by_sample(context.seed(), epoch, ids)
                               : torch::rand({batch.size(), 3}, at::kDouble);
      tell_numbers(context, ids, numbers);
      trainer.step({augment(batch.inputs, numbers), batch.targets});
    }
  }
}

}  // namespace

lockstep::Part augmentation_part() {
  return {
      .name = "augmentation",
      .run = train,
      .broken = {{.slug = "same-augmentation-everywhere",
                  .what = "one seed on every rank, for the model and for all that follows",
                  .oracle = {"batches with random numbers of their own, over all ranks' batches",
                             different_draws}}},
      .near_misses = {{.name = "near-miss-equal-seeds",
                       .slug = "same-augmentation-everywhere",
                       .naive_check = "the generators of all ranks have the same state"}},
      .notes = notes<OfAugmented>};
}
