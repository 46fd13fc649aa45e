// Lesson 12, part "syncing": when the ranks talk. Four microbatches for one update.
//
// Concept:  backward() adds to .grad, so one update may follow several of them, and only the last
//           needs the other ranks. NoSync tells the engine so. The engine looks when forward()
//           runs: there it arms the reduction that backward() then carries out.
// Symptom:  none in the weights, which come out the same up to rounding. Without NoSync, or with
//           one that begins after forward(), every backward reduces: G times the communication.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;       // per rank and microbatch
constexpr std::int64_t kAccumulated = 4;  // microbatches an update: G
constexpr std::int64_t kUpdates = 4;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kAccumulated * kUpdates * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * kAccumulated * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  // A near miss: a bucket for each of the four parameters, so four all-reduces for one reduction.
  // The first reduction still has one bucket: DDP rebuilds its buckets after it.
  DistributedDataParallel<Mlp> model(
      module, context.group(), {.bucket_cap_mb = fault("near-miss-many-buckets") ? 0.00002 : -1.0});
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  probes.start();
  Mean loss_of_epoch, accuracy;
  // How many collectives this rank has entered, as the backend counts them.
  const auto entered = [&] {
    return static_cast<double>(context.group()->getDefaultBackend()->getSequenceNumberForGroup());
  };

  for (std::int64_t update = 0; update < kUpdates; ++update) {
    optimizer.zero_grad();
    double in_all = 0, in_last = 0;  // collectives inside this update's backwards
    for (std::int64_t part = 0; part < kAccumulated; ++part) {
      std::vector<std::int64_t> mine;
      for (std::int64_t i = 0; i < kBatch; ++i)
        mine.push_back(((update * kAccumulated + part) * kBatch + i) * world_size + context.rank());
      probes.samples("train", mine);
      const auto batch = take(data, mine);
      const auto inputs = batch.inputs.to(context.device());

      const bool last = part + 1 == kAccumulated;
      std::optional<NoSync> no_sync;  // while it lives, forward() arms no reduction
      const auto begin_no_sync = [&] {
        probes.sync_gradients(false);
        no_sync.emplace(model.engine());
      };
      at::Tensor outputs;
      if (fault("sync-every-microbatch")) {  // PITFALL sync-every-microbatch
        outputs = model(inputs);
      } else if (fault("no-sync-around-backward-only")) {  // PITFALL no-sync-around-backward-only
        outputs = model(inputs);
        if (!last) begin_no_sync();  // The reduction is armed; this comes too late.
      } else {
        if (!last) begin_no_sync();
        outputs = model(inputs);
      }
      const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                  at::Reduction::None);
      const auto loss = each.mean() / kAccumulated;
      probes.loss(loss, each);
      const double before = entered();
      loss.backward();
      in_last = entered() - before;
      in_all += in_last;
      // A near miss: a collective inside no_sync, for every microbatch; but not of the gradients.
      if (fault("near-miss-loss-logged")) {
        auto shown = loss.detach().clone();
        all_reduce(*context.group(), shown);
      }
      if (no_sync) probes.sync_gradients(true);
      loss_of_epoch.add(each);
      accuracy.add(outputs.argmax(1).cpu() == batch.targets);
    }
    add_figure(context, "reductions", in_all / in_last);
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

// The last backward of an update reduces everything once.
Measured reductions(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "reductions"), .tolerance = 0};
}

}  // namespace

lockstep::Part syncing_part() {
  const Oracle oracle{"all-reduces of an update over those of its last backward", reductions};
  return {.name = "syncing",
          .run = train,
          .broken = {{.slug = "sync-every-microbatch",
                      .what = "no NoSync: every microbatch's backward reduces",
                      .oracle = oracle},
                     {.slug = "no-sync-around-backward-only",
                      .what = "NoSync begins after forward, which has armed the reduction",
                      .oracle = oracle}},
          .near_misses = {{.name = "near-miss-many-buckets",
                           .slug = "sync-every-microbatch",
                           .naive_check = "an update has as many all-reduces as microbatches"},
                          {.name = "near-miss-loss-logged",
                           .slug = "no-sync-around-backward-only",
                           .naive_check = "collectives run while no_sync is on"}}};
}
