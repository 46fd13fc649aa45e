// Lesson 05: set_epoch. Article A's shape: 1,000 samples, batch 32 per rank, 10 epochs (3 by
// default).
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
#include <memory>
#include <optional>
#include <set>

namespace {

using namespace lockstep;

constexpr std::int64_t kSamples = 1'000;
constexpr std::int64_t kBatch = 32;
using Batches = std::vector<std::vector<std::int64_t>>;

// A data set of nothing but ids, so that LibTorch's own loader can be asked which samples it would
// load.
struct Ids : torch::data::datasets::BatchDataset<Ids, std::vector<std::int64_t>> {
  std::vector<std::int64_t> get_batch(torch::ArrayRef<std::size_t> indices) override {
    return {indices.begin(), indices.end()};
  }
  std::optional<std::size_t> size() const override { return kSamples; }
};

// LibTorch's sampler and loader, which takes it by value.
struct LibtorchLoader {
  LibtorchLoader(int world_size, int rank)
      : sampler(kSamples, world_size, rank),
        loader(torch::data::make_data_loader(Ids{}, sampler, kBatch)) {}
  Batches batches() { return {loader->begin(), loader->end()}; }

  using Sampler = torch::data::samplers::DistributedRandomSampler;
  Sampler sampler;
  std::unique_ptr<torch::data::StatelessDataLoader<Ids, Sampler>> loader;
};

void train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, kSamples);
  auto& probes = context.probes();
  probes.dataset("train", data.inputs, data.targets, all_ids(kSamples), kSamples);
  DistributedSamplerOptions options{.dataset_size = kSamples,
                                    .num_replicas = context.world_size(),
                                    .rank = context.rank(),
                                    .seed = context.seed()};
  DistributedSampler sampler(options);
  const bool uses_loader = fault("set-epoch-on-copy");  // PITFALL set-epoch-on-copy
  std::optional<LibtorchLoader> loader;
  if (uses_loader) loader.emplace(context.world_size(), context.rank());
  TracedTrainer trainer(context, data);

  for (std::int64_t epoch = 0; epoch < (context.full() ? 10 : 3); ++epoch) {
    std::int64_t told = epoch;
    if (fault("epoch-differs-by-rank")) {  // PITFALL epoch-differs-by-rank
      told = epoch + context.rank();  // A counter of its own on each rank, and they have drifted.
    }
    // A near miss: a new sampler every epoch, seeded anew. set_epoch is never called, and need not
    // be.
    const bool reseeded = fault("near-miss-reseeded");
    if (reseeded) {
      options.seed = context.seed() + static_cast<std::uint64_t>(epoch);
      sampler = DistributedSampler(options);
    }
    // Another near miss: the pass is under way, but nothing has been drawn.
    const bool begin_first = fault("near-miss-begun-before-set-epoch");
    if (begin_first) trainer.begin_epoch(epoch);

    const bool draws_ahead = fault("epoch-set-after-prefetch");  // PITFALL epoch-set-after-prefetch
    if (draws_ahead) {
      trainer.begin_epoch(epoch);
      // The loader has its first batch before set_epoch.
      trainer.step(sampler.batches(kBatch).front());
    }
    if (fault("missing-set-epoch")) {  // PITFALL missing-set-epoch
      // Nothing: the sampler deals epoch 0 for ever.
    } else if (!reseeded) {
      if (uses_loader) {
        // The loader has its own copy, and stays at 0.
        loader->sampler.set_epoch(static_cast<std::size_t>(told));
      } else {
        sampler.set_epoch(told);
      }
      probes.set_epoch(told);
    }
    if (!begin_first && !draws_ahead) trainer.begin_epoch(epoch);
    auto batches = uses_loader ? loader->batches() : sampler.batches(kBatch);
    if (draws_ahead) batches.erase(batches.begin());  // trained on already
    for (const auto& batch : batches) trainer.step(batch);
    trainer.end_epoch();
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
