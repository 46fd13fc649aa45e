// Ranks, or parts of a batch, with unequally many samples.
#include <lockstep/record/recorder.h>

#include <numeric>

#include "silence.h"

namespace lockstep::silence {
namespace {

// Every update's global batch is cut into `sizes`, one part a rank.
double train_unevenly(const Job& job, const Ids& sizes, bool plain_mean) {
  const auto global = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const auto own = sizes.at(static_cast<std::size_t>(job.rank()));
  const auto before = std::accumulate(sizes.begin(), sizes.begin() + job.rank(), std::int64_t{0});
  record::intent({.global_batch = global, .loss_reduction = "mean"});
  auto net = make_model();
  const DistributedSampler all({.dataset_size = job.train.size(), .seed = job.seed});
  train_ddp(job, net, epochs_of(all, global), [&](auto& model, const Ids& ids) {
    const auto batch = take(job.train, {ids.begin() + before, ids.begin() + before + own});
    auto loss = mean_loss(model(batch.inputs), batch.targets);
    // DDP takes the mean over the ranks; each weighs as much as it has samples.
    if (!plain_mean)
      loss = loss * (static_cast<double>(own * job.world_size()) / static_cast<double>(global));
    return loss;
  });
  return accuracy(net, job.test);
}

// The sizes fall by rank, from nearly two batches to a small part of one: 48 and 16 of two ranks.
double ranks(const Job& job, const Fault& fault) {
  Ids sizes;
  for (std::int64_t rank = 0; rank < job.world_size(); ++rank)
    sizes.push_back(job.batch * (2 * (job.world_size() - rank) - 1) / job.world_size());
  return train_unevenly(job, sizes, fault("mean-of-local-means"));
}

// How chunk() cuts a batch of 63 over two devices: 32 and 31. DataParallel's arithmetic, on ranks.
double chunks(const Job& job, const Fault& fault) {
  Ids sizes(static_cast<std::size_t>(job.world_size()), job.batch);
  sizes.back() -= job.world_size() - 1;
  return train_unevenly(job, sizes, fault("unequal-chunk-mean"));
}

}  // namespace

std::vector<Setting> uneven_settings() {
  return {{"uneven", {"mean-of-local-means"}, ranks}, {"chunks", {"unequal-chunk-mean"}, chunks}};
}

}  // namespace lockstep::silence
