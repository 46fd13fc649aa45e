// Which samples a rank trains on, and in which order.
#include <lockstep/record/recorder.h>
#include <torch/data/samplers/distributed.h>

#include <algorithm>
#include <numeric>

#include "silence.h"

namespace lockstep::silence {
namespace {

double accuracy_after(const Job& job, const TensorData& data, const EpochOf& batches_of) {
  auto net = trained(job, data, batches_of);
  return accuracy(net, job.test);
}

Ids all_ids(std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// Four files a rank, of consecutive samples. A folder lists them in its own order: here turned by the rank.
double files(const Job& job, const Fault& fault) {
  const auto world_size = static_cast<std::size_t>(job.world_size());
  const std::size_t of_rank = 4, count = of_rank * world_size;
  const auto size = job.train.size() / static_cast<std::int64_t>(count);
  auto names = all_ids(static_cast<std::int64_t>(count));
  std::rotate(names.begin(), names.begin() + job.rank(), names.end());
  if (!fault("file-order-differs")) std::sort(names.begin(), names.end());
  if (fault("sharded-twice")) {  // own files, which the sampler then splits again
    Ids own;
    for (std::size_t i = 0; i < of_rank; ++i)
      own.push_back(names[i * world_size + static_cast<std::size_t>(job.rank())]);
    names = own;
  }
  Ids ids;
  for (const auto name : names)
    for (std::int64_t i = 0; i < size; ++i) ids.push_back(name * size + i);
  auto options = job.sampler();
  options.dataset_size = static_cast<std::int64_t>(ids.size());
  if (fault("no-sharding")) options.num_replicas = 1, options.rank = 0;
  auto held = rows_of(job.train, ids);
  held.ids = ids;
  held.global_size = static_cast<std::int64_t>(count) * size;
  return accuracy_after(job, held, epochs_of(DistributedSampler(options), job.batch));
}

// A random split into what is trained on and what is held out, made at random by each rank for itself.
double split(const Job& job, const Fault& fault) {
  auto seed = job.seed;
  if (fault("dataset-unseeded")) seed = 1'000 * (job.seed + 1) + job.rank();
  const TensorData all{at::cat({job.train.inputs, job.unused.inputs}),
                       at::cat({job.train.targets, job.unused.targets})};
  const auto order =
      at::randperm(all.size(), at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong)
          .narrow(0, 0, job.train.size());
  const TensorData mine{all.inputs.index_select(0, order), all.targets.index_select(0, order)};
  return accuracy_after(job, mine, shuffled(job));
}

// Two nodes in name, with half of the ranks each.
double nodes(const Job& job, const Fault& fault) {
  const int of_node = std::max(1, job.world_size() / 2);
  auto options = job.sampler();
  if (fault("world-size-from-device-count")) {
    options.num_replicas = of_node;
    options.rank = job.rank() % of_node;
  }
  if (const auto recorder = record::recorder_here()) {
    auto place = record::placement_of_this_process();  // and where it would be
    place.node += static_cast<std::uint64_t>(job.rank() / of_node);
    place.local_rank = job.rank() % of_node;
    place.local_world_size = of_node;
    recorder->probes().tell(place);
    recorder->probes().tell(trace::Shard{"train", options.num_replicas, options.rank});
  }
  return accuracy_after(job, job.train, epochs_of(DistributedSampler(options), job.batch));
}

// Read in order by two loader workers a rank; the loader takes a batch of each in turn.
double stream(const Job& job, const Fault& fault) {
  const std::int64_t workers = 2;
  return accuracy_after(job, job.train, [&](std::int64_t epoch) {
    Batches batches;
    std::vector<Ids> of_worker(workers);
    for (std::int64_t id = 0; id < job.train.size(); ++id)
      for (std::int64_t worker = 0; worker < workers; ++worker) {
        const auto reader = job.rank() * workers + worker;
        if (fault("stream-not-sharded") || id % (job.world_size() * workers) == reader)
          of_worker[static_cast<std::size_t>(worker)].push_back(id);
      }
    for (auto at = job.batch; at <= static_cast<std::int64_t>(of_worker[1].size()); at += job.batch)
      for (const auto& ids : of_worker)
        batches.emplace_back(ids.begin() + at - job.batch, ids.begin() + at);
    tell_pass(epoch, job.train.size(), batches);
    return batches;
  });
}

// LibTorch's sampler, of which a loader holds a copy: `tells_copy`, or the original only.
EpochOf libtorch_epochs(const Job& job, bool allow_duplicates, bool tells_copy) {
  Watched<torch::data::samplers::DistributedRandomSampler> sampler(
      static_cast<std::size_t>(job.train.size()), static_cast<std::size_t>(job.world_size()),
      static_cast<std::size_t>(job.rank()), allow_duplicates);
  return [=, copy = sampler](std::int64_t epoch) mutable {
    auto& told = tells_copy ? copy : sampler;
    told.set_epoch(static_cast<std::size_t>(epoch) + 1'000 * job.seed);
    copy.reset();
    Batches batches;
    while (const auto batch = copy.next(static_cast<std::size_t>(job.batch)))
      if (static_cast<std::int64_t>(batch->size()) == job.batch)
        batches.emplace_back(batch->begin(), batch->end());
    tell_pass(epoch, job.train.size(), batches);
    return batches;
  };
}

double tail(const Job& job, const Fault& fault) {
  auto options = job.sampler();
  options.drop_last = true;
  auto batches_of = epochs_of(DistributedSampler(options), job.batch);
  if (fault("tail-never-seen")) batches_of = libtorch_epochs(job, false, /*tells_copy=*/true);
  return accuracy_after(job, job.train, batches_of);
}

double epochs(const Job& job, const Fault& fault) {
  DistributedSampler sampler(job.sampler());
  const auto theirs = libtorch_epochs(job, true, /*tells_copy=*/false);
  return accuracy_after(job, job.train, [&, theirs](std::int64_t epoch) {
    if (fault("set-epoch-on-copy")) return theirs(epoch);
    Batches batches;
    if (fault("epoch-set-after-prefetch"))
      batches = {sampler.batches(job.batch, true).front()};  // drawn in the last epoch's order
    auto told = epoch;
    if (fault("epoch-differs-by-rank")) told += job.rank();
    if (!fault("missing-set-epoch")) sampler.set_epoch(told);
    const auto rest = sampler.batches(job.batch, true);
    batches.insert(batches.end(), rest.begin() + static_cast<std::ptrdiff_t>(batches.size()),
                   rest.end());
    tell_pass(epoch, job.train.size(), batches);
    return batches;
  });
}

}  // namespace

std::vector<Setting> sharding_settings() {
  return {
      {"files", {"no-sharding", "sharded-twice", "file-order-differs"}, files},
      {"split", {"dataset-unseeded"}, split},
      {"nodes", {"world-size-from-device-count"}, nodes},
      {"stream", {"stream-not-sharded"}, stream},
      {"tail", {"tail-never-seen"}, tail},
      {"epochs",
       {"missing-set-epoch", "set-epoch-on-copy", "epoch-differs-by-rank",
        "epoch-set-after-prefetch"},
       epochs},
  };
}

}  // namespace lockstep::silence
