// Lesson 05: set_epoch. 1,000 samples, batch 32 per rank, 3 epochs (10 with --full).
//
// Concept:  a distributed sampler shuffles with seed + epoch, so that all ranks agree without
//           communication. It only knows the epoch if you tell it: the same one on every rank,
//           before anything of the pass is drawn.
// Symptom:  never told, it deals the same order every epoch. Told too late, the batches drawn ahead
//           are stale. Told different numbers on different ranks, the shards overlap and leave
//           gaps.
// Run:      ./lockstep run 05_set_epoch
//           05_set_epoch --variant missing-set-epoch --world-size 4
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/data.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace {

using namespace lockstep;

constexpr std::int64_t kSamples = 1'000;
constexpr std::int64_t kBatch = 32;

DistributedSampler sampler_of(const RankContext& context, std::uint64_t seed) {
  return DistributedSampler({.dataset_size = kSamples,
                             .num_replicas = context.world_size(),
                             .rank = context.rank(),
                             .seed = seed});
}

// The batches of the sampler's epoch without the first, for a pass that has begun.
std::vector<std::vector<std::int64_t>> batches_after_first(const DistributedSampler& sampler) {
  const auto ids = sampler.indices();
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t begin = kBatch; begin < sampler.size(); begin += kBatch)
    batches.emplace_back(ids.begin() + begin,
                         ids.begin() + std::min(begin + kBatch, sampler.size()));
  return batches;
}

// A data set of nothing but ids, so that LibTorch's own loader can be asked which samples it would
// load.
class Ids : public torch::data::datasets::BatchDataset<Ids, std::vector<std::int64_t>> {
 public:
  explicit Ids(std::size_t size) : size_(size) {}
  std::vector<std::int64_t> get_batch(torch::ArrayRef<std::size_t> indices) override {
    return {indices.begin(), indices.end()};
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

// A near miss: set_epoch comes after batches(). Nobody uses these batches, and the next call deals
// anew.
void set_epoch_after_unused_batches(DistributedSampler& sampler, std::int64_t epoch) {
  static_cast<void>(sampler.batches(kBatch));
  sampler.set_epoch(epoch);
}

void train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, kSamples);
  Trainer trainer(context, data);
  const std::int64_t epochs = context.full() ? 10 : 3;

  if (fault("set-epoch-on-copy")) {
    Watched<torch::data::samplers::DistributedRandomSampler> sampler(kSamples, context.world_size(),
                                                                     context.rank());
    const auto loader = torch::data::make_data_loader(Ids(kSamples), sampler, kBatch);
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      sampler.set_epoch(epoch);  // The loader has a copy of its own, which stays at 0.
      for (const auto& ids : *loader) trainer.step(ids);
    }
  } else {
    auto sampler = sampler_of(context, context.seed());
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      if (fault("epoch-set-after-prefetch")) {
        // The first batch is there when set_epoch comes: it is of the last epoch's order.
        const auto first = take(data, sampler.batches(kBatch).front());
        sampler.set_epoch(epoch);
        trainer.step(first);
        for (const auto& ids : batches_after_first(sampler)) trainer.step(ids);
      } else {
        if (fault("missing-set-epoch")) {
          // Nothing: the sampler deals epoch 0 for ever.
        } else if (fault("epoch-differs-by-rank")) {
          sampler.set_epoch(epoch + context.rank());  // Each rank counts for itself: they differ.
        } else if (fault("near-miss-reseeded")) {
          // A near miss: a new sampler for every epoch, with another seed, need not be told.
          sampler = sampler_of(context, context.seed() + static_cast<std::uint64_t>(epoch));
        } else if (fault("near-miss-begun-before-set-epoch")) {
          set_epoch_after_unused_batches(sampler, epoch);
        } else {
          sampler.set_epoch(epoch);
        }
        for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
      }
    }
  }
}

// How many different orders rank 0 went through, against the number of epochs.
Measured distinct_orders(const Outcomes& outcomes) {
  const auto found = outcomes.at(0).ids.find("train");
  if (found == outcomes.at(0).ids.end()) return {.expected = 1, .observed = 0, .tolerance = 0};
  const auto& epochs = found->second;
  return {.expected = static_cast<double>(epochs.size()),
          .observed = static_cast<double>(std::set(epochs.begin(), epochs.end()).size()),
          .tolerance = 0};
}

// Samples of the second epoch that no rank drew.
Measured samples_missed(const Outcomes& outcomes) {
  const auto times = times_drawn(outcomes, "train", 1, kSamples);
  return {.expected = 0,
          .observed = static_cast<double>(std::count(times.begin(), times.end(), 0)),
          .tolerance = 0};
}

// Of the second epoch's first batch on rank 0, the samples that were in the first epoch's first
// batch too. By chance they are 32 * 32 / 1000, about one, on average.
Measured stale_samples(const Outcomes& outcomes) {
  const auto found = outcomes.at(0).ids.find("train");
  Measured stale{
      .expected = 1, .observed = std::numeric_limits<double>::quiet_NaN(), .tolerance = 8};
  if (found == outcomes.at(0).ids.end() || found->second.size() < 2) return stale;
  const auto length =
      static_cast<std::ptrdiff_t>(std::min<std::size_t>(kBatch, found->second[0].size()));
  const std::set<std::int64_t> first(found->second[0].begin(), found->second[0].begin() + length);
  stale.observed =
      static_cast<double>(std::count_if(found->second[1].begin(), found->second[1].begin() + length,
                                        [&](auto id) { return first.count(id) > 0; }));
  return stale;
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::Oracle orders{"different orders on rank 0", distinct_orders};
  return lockstep::lesson_main(
      argc, argv,
      {.name = "05_set_epoch",
       .title = "set_epoch: another order every epoch, the same on all ranks",
       .parts = {{.name = "epochs",
                  .run = train,
                  .broken = {{.slug = "missing-set-epoch",
                              .what = "set_epoch is never called",
                              .oracle = orders,
                              .min_world_size = 1},
                             {.slug = "set-epoch-on-copy",
                              .what = "set_epoch on your sampler; LibTorch's loader has a copy",
                              .oracle = orders,
                              .min_world_size = 1},
                             {.slug = "epoch-differs-by-rank",
                              .what = "each rank tells its sampler another epoch",
                              .oracle = {"samples no rank drew in an epoch", samples_missed}},
                             {.slug = "epoch-set-after-prefetch",
                              .what = "set_epoch after the first batch was drawn",
                              .oracle = {"samples of the first batch that repeat the last epoch's",
                                         stale_samples},
                              .min_world_size = 1}},
                  .near_misses = {{.name = "near-miss-reseeded",
                                   .slug = "missing-set-epoch",
                                   .naive_check = "set_epoch is never called"},
                                  {.name = "near-miss-begun-before-set-epoch",
                                   .slug = "epoch-set-after-prefetch",
                                   .naive_check = "set_epoch comes after the pass began"}}}}});
}
