// Samples that are drawn twice, never, or by the wrong rank; figures of the wrong samples.
#include <lockstep/train/seeding.h>

#include "operators.h"

namespace lockstep::mutants {
namespace {

DistributedSampler sampler_of(const Parts& parts, int world_size, int rank, std::uint64_t seed) {
  return DistributedSampler(
      {.dataset_size = parts.train.size(), .num_replicas = world_size, .rank = rank, .seed = seed});
}

// The ids of all batches, changed, and cut anew.
void change_ids(Parts& parts, std::function<Ids(const Ids&)> change) {
  parts.batches = [&parts, change, batches = parts.batches](std::int64_t epoch) {
    Ids ids;
    for (const auto& batch : batches(epoch)) ids.insert(ids.end(), batch.begin(), batch.end());
    ids = change(ids);
    std::vector<Ids> cut;
    const auto size = static_cast<std::size_t>(parts.program.settings.batch);
    for (std::size_t at = 0; at < ids.size(); at += size) {
      const auto end = std::min(ids.size(), at + size);
      cut.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                       ids.begin() + static_cast<std::ptrdiff_t>(end));
    }
    return cut;
  };
}

}  // namespace

std::vector<Operator> data_operators() {
  auto all = shown_in(
      {"samples", "contents", "ended"},
      {
          {"every-rank-reads-all",
           {"no-sharding"},
           [](Parts& parts) { parts.sampler = sampler_of(parts, 1, 0, parts.place.seed); }},
          {"every-rank-reads-the-same-shard",
           {"no-sharding"},
           [](Parts& parts) {
             parts.sampler = sampler_of(parts, parts.place.world_size, 0, parts.place.seed);
           }},
          {"every-rank-shuffles-for-itself",
           {"shards-overlap"},
           [](Parts& parts) {
             parts.sampler =
                 sampler_of(parts, parts.place.world_size, parts.place.rank,
                            parts.place.seed + static_cast<std::uint64_t>(parts.place.rank));
           }},
          {"sharded-again",
           {"sharded-twice"},
           [](Parts& parts) {
             change_ids(parts, [&parts](const Ids& ids) {
               Ids some;
               for (std::size_t i = static_cast<std::size_t>(parts.place.rank); i < ids.size();
                    i += static_cast<std::size_t>(parts.place.world_size))
                 some.push_back(ids[i]);
               return some;
             });
           }},
          {"epoch-not-told",
           {"missing-set-epoch"},
           [](Parts& parts) {
             parts.batches = [&parts](std::int64_t) {
               return parts.sampler.batches(parts.program.settings.batch);
             };
           }},
          {"epoch-of-one-rank-ahead",
           {"epoch-differs-by-rank"},
           [](Parts& parts) {
             if (parts.place.rank == 1)
               parts.batches = [batches = parts.batches](std::int64_t epoch) {
                 return batches(epoch + 1);
               };
           }},
          {"one-batch-more-on-one-rank",
           {"uneven-batches"},
           [](Parts& parts) {
             if (parts.place.rank == 1)
               parts.batches = [batches = parts.batches](std::int64_t epoch) {
                 auto more = batches(epoch);
                 for (int twice = 0; twice < 2; ++twice) more.push_back(more.front());
                 return more;
               };
           }},
          {"shards-overlap",
           {"shards-overlap"},
           [](Parts& parts) {
             // Blocks that begin one batch too early, but for the first.
             parts.batches = [&parts](std::int64_t epoch) {
               parts.probes.set_epoch(epoch);
               auto all = sampler_of(parts, 1, 0, parts.place.seed);
               all.set_epoch(epoch);
               const auto ids = all.indices();
               const auto n = static_cast<std::int64_t>(ids.size()) / parts.place.world_size;
               const auto size = parts.program.settings.batch;
               const auto first = std::max<std::int64_t>(0, parts.place.rank * n - size);
               std::vector<Ids> batches;
               for (std::int64_t at = first; at < first + n; at += size)
                 batches.emplace_back(ids.begin() + at,
                                      ids.begin() + std::min(at + size, first + n));
               return batches;
             };
           }},
          {"data-of-each-rank",
           {"dataset-unseeded"},
           [](Parts& parts) { parts.train.inputs = parts.train.inputs + parts.place.rank; }},
          {"noise-of-rank-zero-everywhere",
           {"same-augmentation-everywhere"},
           [](Parts& parts) {
             parts.dice =
                 torch::make_generator<at::CPUGeneratorImpl>(rank_seed(parts.place.seed, 0));
           },
           {},
           {Engine::ddp}},
      });
  const auto figures = shown_in(
      {"score"}, {
                     {"evaluation-padded",
                      {"evaluation-padding"},
                      [](Parts& parts) {
                        parts.evaluation_ids = [&parts] {
                          return DistributedSampler({.dataset_size = parts.test.size(),
                                                     .num_replicas = parts.place.world_size,
                                                     .rank = parts.place.rank,
                                                     .shuffle = false})
                              .indices();
                        };
                      }},
                     {"score-of-one-rank",
                      {"rank-zero-metric"},
                      [](Parts& parts) {
                        parts.reduce_score = [](at::Tensor&) {};
                        parts.reports = parts.place.rank == 0;
                      }},
                     {"score-by-all-samples",
                      {"local-hits-global-count"},
                      [](Parts& parts) {
                        parts.reduce_score = [&parts](at::Tensor& total) {
                          total[1] = static_cast<double>(parts.test.size());
                        };
                      }},
                 });
  all.insert(all.end(), figures.begin(), figures.end());
  return all;
}

}  // namespace lockstep::mutants
