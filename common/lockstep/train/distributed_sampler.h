// Which samples a rank sees in an epoch: torch.utils.data.distributed.DistributedSampler, index for
// index.
#pragma once

#include <lockstep/observe/place.h>
#include <lockstep/train/value.h>
#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep {

struct DistributedSamplerOptions {
  std::int64_t dataset_size = 0;  // > 0
  int num_replicas = 1;
  int rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;
};

// Not collective, no communication: every rank computes the same permutation,
// randperm(n, generator(seed + epoch)), pads it by repeating its head (or cuts it, drop_last) to a
// multiple of num_replicas, and takes every num_replicas-th index from its rank on.
//
// It is a torch::data sampler too, so make_data_loader takes it. The loader copies its sampler;
// copies of this one share the epoch, so set_epoch on yours is seen by the loader's (with
// LibTorch's own samplers it is not: pytorch/pytorch#73141).
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit DistributedSampler(const DistributedSamplerOptions& options);  // throws UsageError

  // Call it before each pass: another epoch, another order. Takes effect at the next indices() or
  // reset().
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const;

  // This rank's indices of the epoch, in order; size() of them.
  std::vector<std::int64_t> indices() const;
  std::int64_t size() const;  // the same on all ranks

  // The same, cut into batches; the last one may be smaller, or is left out with drop_last_batch.
  std::vector<std::vector<std::int64_t>> batches(std::int64_t batch_size,
                                                 bool drop_last_batch = false,
                                                 Place place = Place::here()) const;

  // For checkpoints: the epoch and "samples", how many of its samples all ranks together were given
  // by next(); equal on all ranks. A sampler that loads it goes on behind them: next() gives the
  // rest of the epoch, with any num_replicas, and so does the pass of a loader made afterwards; the
  // reset() after that one begins an epoch's whole pass. indices(), batches() and size() stay those
  // of whole epochs. Throws Error when this sampler orders the data otherwise (another size, seed,
  // shuffle or drop_last). Python's DistributedSampler has no state.
  Value state_dict() const;
  void load_state_dict(const Value& state);

  // torch::data::samplers::Sampler. next() gives up to batch_size indices, nothing at the end of
  // the pass. save() keeps what state_dict() does; load() throws Error when this sampler cuts the
  // data otherwise (another size, num_replicas, seed, shuffle or drop_last).
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  DistributedSamplerOptions options_;
  std::shared_ptr<std::int64_t> epoch_;  // shared among copies
  std::vector<std::int64_t> order_;      // of the pass under way
  std::int64_t order_epoch_ = 0;         // the epoch that order_ was made for
  std::int64_t first_ = 0;               // samples of it that were given before order_ begins
  std::size_t next_ = 0;
  bool loaded_ = false;  // and nothing was given since
};

// From now on a sampler of one replica deals the batches that so many replicas would deal, joined: one process is given
// what all ranks are given. size() stays that of a replica. For `lockstep prove`, as the next one.
void join_replicas(int num_replicas);

// Whether the samplers of a job's first and last rank deal each other's samples, and so those in between.
void swap_replicas(bool wanted);

// What batches() tells who listens (observe/observer.h), of batches that you have cut yourself.
void tell_pass(std::int64_t epoch, std::int64_t dataset_size,
               const std::vector<std::vector<std::int64_t>>& batches, Place place = Place::here());

}  // namespace lockstep
