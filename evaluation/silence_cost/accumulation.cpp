// Four microbatches an update.
#include <lockstep/record/recorder.h>

#include <numeric>
#include <optional>

#include "silence.h"

namespace lockstep::silence {
namespace {

// `sizes`: a rank's samples in each microbatch of an update.
double train_in_windows(const Job& job, const Fault& fault, const Ids& sizes) {
  const auto samples = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const auto count = static_cast<std::int64_t>(sizes.size());
  record::intent({.global_batch = samples * job.world_size(), .loss_reduction = "mean"});
  auto net = make_model();
  DistributedDataParallel<Mlp> model(net, job.group);
  DecayingSgd optimizer(net->parameters(), job.rate, job.updates());
  std::int64_t microbatch = 0;
  for_updates(job.updates(), epochs_of(DistributedSampler(job.sampler()), samples),
              [&](const Ids& ids) {
                auto begin = ids.begin();
                for (const auto size : sizes) {
                  const auto batch = take(job.train, {begin, begin + size});
                  begin += size;
                  bool due = false;
                  if (fault("accumulation-off-by-one"))
                    due = microbatch % count == 0;
                  else
                    due = (microbatch + 1) % count == 0;
                  ++microbatch;
                  std::optional<NoSync> no_sync;
                  at::Tensor outputs;
                  if (fault("no-sync-around-backward-only")) {
                    outputs = model(batch.inputs);
                    if (!due) no_sync.emplace(model.engine());
                  } else {
                    if (!due && !fault("sync-every-microbatch")) no_sync.emplace(model.engine());
                    outputs = model(batch.inputs);
                  }
                  double share = static_cast<double>(size) / static_cast<double>(samples);
                  if (fault("mean-of-microbatch-means")) share = 1.0 / static_cast<double>(count);
                  if (fault("accumulation-not-divided")) share = 1;
                  (mean_loss(outputs, batch.targets) * share).backward();
                  if (!due) continue;
                  optimizer.step();
                  net->zero_grad();
                }
              });
  return accuracy(net, job.test);
}

}  // namespace

std::vector<Setting> accumulation_settings() {
  const auto equal = [](const Job& job, const Fault& fault) {
    return train_in_windows(job, fault, Ids(4, job.batch / 4));
  };
  const auto uneven = [](const Job& job, const Fault& fault) {
    const auto large = job.batch / 3;  // 10, 10, 10 and 2 of 32
    return train_in_windows(job, fault, {large, large, large, job.batch - 3 * large});
  };
  return {{"accumulation",
           {"accumulation-not-divided", "accumulation-off-by-one", "sync-every-microbatch",
            "no-sync-around-backward-only"},
           equal},
          {"uneven-accumulation", {"mean-of-microbatch-means"}, uneven}};
}

}  // namespace lockstep::silence
