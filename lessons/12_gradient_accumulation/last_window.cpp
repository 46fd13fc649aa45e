// Lesson 12, part "last-window": an epoch whose microbatches fill no whole number of updates.
//
// Concept:  14 microbatches, four an update: two are left at the end. They make an update of their
//           own, divided by two; or they wait in .grad for the next epoch's first two.
// Symptom:  none. The losses of the last microbatches are printed and their backwards cost time,
//           but the next epoch's zero_grad() clears their gradients. With fewer microbatches than
//           an update takes, nothing is trained at all.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/models.h>

#include <algorithm>
#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;         // per rank and microbatch
constexpr std::int64_t kAccumulated = 4;    // microbatches an update: G
constexpr std::int64_t kMicrobatches = 14;  // an epoch
constexpr std::int64_t kEpochs = 2;
using Ids = std::vector<std::int64_t>;

// The epoch's microbatches, each with all ranks' samples.
std::vector<Ids> everyones(RankContext& context, std::int64_t epoch) {
  std::vector<Ids> all(kMicrobatches);
  for (int rank = 0; rank < context.world_size(); ++rank) {
    DistributedSampler sampler({.dataset_size = kBatch * kMicrobatches * context.world_size(),
                                .num_replicas = context.world_size(),
                                .rank = rank,
                                .seed = context.seed()});
    sampler.set_epoch(epoch);
    const auto batches = sampler.batches(kBatch);
    for (std::size_t i = 0; i < batches.size(); ++i)
      all[i].insert(all[i].end(), batches[i].begin(), batches[i].end());
  }
  return all;
}

// How many samples of `waiting` are in this gradient: those of the last microbatches whose mean
// gradient, computed by one process, it is. 0 where it is that of none.
double samples_behind(const at::Tensor& gradient, const Mlp& module, const TensorData& data,
                      const std::vector<Ids>& waiting) {
  Ids samples;
  for (auto microbatch = waiting.rbegin(); microbatch != waiting.rend(); ++microbatch) {
    samples.insert(samples.end(), microbatch->begin(), microbatch->end());
    if (relative_distance(gradient, gradient_of_batch(module, take(data, samples))) < 1e-3)
      return static_cast<double>(samples.size());
  }
  return 0;
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kMicrobatches * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * kAccumulated * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  probes.start();
  const auto zero_grad = [&] {
    probes.zero_grad("optimizer");
    optimizer.zero_grad();
  };

  // A near miss: what is left over stays in .grad, and the next epoch's first microbatches join it.
  const bool carries_over = fault("near-miss-carried-over");
  // Another near miss: the last two are drawn by nobody. The next epoch's order leaves other
  // samples out.
  const std::int64_t microbatches = fault("near-miss-tail-not-drawn")
                                        ? kMicrobatches / kAccumulated * kAccumulated
                                        : kMicrobatches;
  std::vector<Ids> waiting;    // microbatches drawn since the last update, of all ranks
  std::int64_t in_window = 0;  // microbatches in .grad
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    DistributedSampler sampler({.dataset_size = data.size(),
                                .num_replicas = world_size,
                                .rank = context.rank(),
                                .seed = context.seed()});
    sampler.set_epoch(epoch);
    probes.set_epoch(epoch);
    const auto mine = sampler.batches(kBatch);
    const auto all = everyones(context, epoch);
    Mean loss_of_epoch, accuracy;
    if (!carries_over) {
      zero_grad();
      in_window = 0;
    }
    probes.pass_begin("train", epoch);
    for (std::int64_t i = 0; i < microbatches; ++i) {
      probes.samples("train", mine[i]);
      waiting.push_back(all[i]);
      const auto batch = take(data, mine[i]);
      ++in_window;
      // How many microbatches there are in this one's window.
      const std::int64_t to_come = microbatches - i - 1;
      const std::int64_t of_window =
          carries_over ? kAccumulated : std::min(kAccumulated, in_window + to_come);

      bool update_due = false;
      if (fault("last-accumulation-window-lost")) {  // PITFALL last-accumulation-window-lost
        update_due = in_window == kAccumulated;      // The last two never are as many.
      } else {
        update_due = in_window == of_window;
      }
      std::optional<NoSync> no_sync;
      probes.sync_gradients(update_due);
      if (!update_due) no_sync.emplace(model.engine());
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                  at::Reduction::None);
      const auto loss = each.mean() / of_window;
      probes.loss(loss, each);
      loss.backward();
      loss_of_epoch.add(each);
      accuracy.add(outputs.argmax(1).cpu() == batch.targets);
      if (!update_due) continue;

      add_figure(context, "in_an_update",
                 samples_behind(flat_gradients(*module), module, data, waiting));
      probes.gradients_ready();
      optimizer.step();
      probes.updated(optimizer);
      zero_grad();
      waiting.clear();
      in_window = 0;
    }
    probes.pass_end("train", epoch, microbatches);
    add_figure(context, "drawn", static_cast<double>(kBatch * microbatches * world_size));
    context.outcome().losses.push_back(loss_of_epoch.value());
    context.outcome().accuracy.push_back(accuracy.value());
  }
}

// Rank 0's figures: each rank computes them for all.
Measured in_no_update(const Outcomes& outcomes) {
  const auto sum = [&](const std::string& figure) {
    const auto found = outcomes.at(0).figures.find(figure);
    double total = 0;
    if (found != outcomes.at(0).figures.end())
      for (const double value : found->second) total += value;
    return total;
  };
  return {.expected = 0, .observed = sum("drawn") - sum("in_an_update"), .tolerance = 0};
}

}  // namespace

lockstep::Part last_window_part() {
  return {
      .name = "last-window",
      .run = train,
      .broken = {{.slug = "last-accumulation-window-lost",
                  .what = "updates only where a window is full; an epoch's last two never fill one",
                  .oracle = {"samples drawn whose gradient is in no update", in_no_update},
                  .min_world_size = 1}},
      .near_misses = {{.name = "near-miss-carried-over",
                       .slug = "last-accumulation-window-lost",
                       .naive_check = "an epoch ends without an update"},
                      {.name = "near-miss-tail-not-drawn",
                       .slug = "last-accumulation-window-lost",
                       .naive_check = "an update comes only where a window is full"}}};
}
