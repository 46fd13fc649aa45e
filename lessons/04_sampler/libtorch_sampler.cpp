// Lesson 04, part "libtorch-sampler": the tail that is never dealt.
//
// Concept:  without padding, each epoch leaves N mod W samples out. Permute first and cut then, and
//           they are drawn anew every time.
// Symptom:  LibTorch's DistributedRandomSampler with allow_duplicates=false cuts first: the last N
//           mod W samples of the data set are trained on in no epoch at all.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/data/samplers/distributed.h>

#include <algorithm>

namespace {

using namespace lockstep;

constexpr std::int64_t kSamples = 1'009;  // a prime: no world size from 2 to 16 divides it
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kEpochs = 3;

std::vector<std::vector<std::int64_t>> deal(RankContext& context, const Fault& fault,
                                            std::int64_t epoch) {
  if (fault("tail-never-seen")) {
    Watched<torch::data::samplers::DistributedRandomSampler> sampler(
        kSamples, context.world_size(), context.rank(), /*allow_duplicates=*/false);
    sampler.set_epoch(epoch);
    sampler.reset();
    std::vector<std::vector<std::int64_t>> batches;
    while (const auto batch = sampler.next(kBatch))
      batches.emplace_back(batch->begin(), batch->end());
    return batches;
  } else {
    DistributedSampler sampler({.dataset_size = kSamples,
                                .num_replicas = context.world_size(),
                                .rank = context.rank(),
                                .seed = context.seed(),
                                .drop_last = true});
    sampler.set_epoch(epoch);
    return sampler.batches(kBatch);
  }
}

void train(RankContext& context, const Fault& fault) {
  Trainer trainer(context, fashion_mnist_or_synthetic(Split::train, kSamples));
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch)
    for (const auto& ids : deal(context, fault, epoch)) trainer.step(ids);
}

// Each epoch leaves N mod W samples out (9 at most, up to 16 ranks), drawn at random: that all
// three epochs leave out the same one happens in fewer than one run in a thousand.
Measured samples_never_seen(const Outcomes& outcomes) {
  std::vector<std::int64_t> seen(kSamples, 0);
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto times = times_drawn(outcomes, "train", static_cast<std::size_t>(epoch), kSamples);
    for (std::size_t i = 0; i < times.size(); ++i) seen[i] += times[i];
  }
  return {.expected = 0,
          .observed = static_cast<double>(std::count(seen.begin(), seen.end(), 0)),
          .tolerance = 0};
}

}  // namespace

lockstep::Part libtorch_sampler_part() {
  return {.name = "libtorch-sampler",
          .run = train,
          .broken = {
              {.slug = "tail-never-seen",
               .what = "LibTorch's DistributedRandomSampler, allow_duplicates=false",
               .oracle = {"samples drawn by no rank in any of three epochs", samples_never_seen}}}};
}
