// Lesson 12, part "dividing": what a microbatch counts, and which one is the last.
//
// Concept:  G backwards add up. For the mean over their samples each loss is divided by G, and the
//           update comes after the G-th: at (i + 1) % G == 0.
// Symptom:  not divided, every gradient is G times too large: with SGD, another learning rate.
//           Updated at i % G == 0, the first gradient is of one microbatch and about G times too
//           small, and the last G - 1 microbatches are in no update.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;       // per rank and microbatch
constexpr std::int64_t kAccumulated = 4;  // microbatches an update: G
constexpr std::int64_t kMicrobatches = 16;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  // A near miss: two microbatches are left over, and make an update of their own.
  const bool short_group = fault("near-miss-short-last-group");
  const std::int64_t microbatches = short_group ? kMicrobatches - 2 : kMicrobatches;
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
  Mean loss_of_epoch, accuracy;
  std::vector<std::int64_t> everyone;  // all ranks' samples since the last update
  double since_update = 0;             // microbatches

  for (std::int64_t i = 0; i < microbatches; ++i) {
    std::vector<std::int64_t> mine;
    for (std::int64_t k = 0; k < kBatch * world_size; ++k) {
      everyone.push_back(i * kBatch * world_size + k);
      if (k % world_size == context.rank()) mine.push_back(everyone.back());
    }
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    // How many microbatches there are in the update that this one belongs to.
    const std::int64_t first_of_group = i / kAccumulated * kAccumulated;
    const std::int64_t in_group = std::min(kAccumulated, microbatches - first_of_group);

    bool update_due = false;
    if (fault("accumulation-off-by-one")) {  // PITFALL accumulation-off-by-one
      update_due = i % kAccumulated == 0;
    } else {
      update_due = (i + 1) % kAccumulated == 0 || i + 1 == microbatches;
    }
    std::optional<NoSync> no_sync;
    probes.sync_gradients(update_due);
    if (!update_due) no_sync.emplace(model.engine());
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    // A near miss divides the gradients instead, once they are all there.
    const bool divide_later = fault("near-miss-gradients-divided");
    at::Tensor loss;
    if (fault("accumulation-not-divided")) {  // PITFALL accumulation-not-divided
      loss = each.mean();
    } else {
      loss = divide_later ? each.mean() : each.mean() / in_group;
    }
    probes.loss(loss, each);
    loss.backward();
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
    ++since_update;
    if (!update_due) continue;

    if (divide_later)
      for (auto& parameter : module->parameters()) parameter.mutable_grad() /= in_group;
    add_figure(context, "microbatches", since_update);
    add_figure(context, "gradient_scale",
               scale_of(flat_gradients(*module), gradient_of_batch(module, take(data, everyone))));
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    optimizer.zero_grad();
    everyone.clear();
    since_update = 0;
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

Measured first_update(const Outcomes& outcomes) {
  const auto found = outcomes.at(0).figures.find("microbatches");
  return {.expected = kAccumulated,
          .observed = found == outcomes.at(0).figures.end() ? 0 : found->second.front(),
          .tolerance = 0};
}

}  // namespace

lockstep::Part dividing_part() {
  return {.name = "dividing",
          .run = train,
          .broken = {{.slug = "accumulation-not-divided",
                      .what = "each microbatch's mean loss counts in full",
                      .oracle = {"gradient over one process's gradient", gradient_scale},
                      .min_world_size = 1},
                     {.slug = "accumulation-off-by-one",
                      .what = "updates at i % G == 0, so first after one microbatch",
                      .oracle = {"microbatches behind the first update", first_update},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-gradients-divided",
                           .slug = "accumulation-not-divided",
                           .naive_check = "no loss is divided by the number of microbatches"},
                          {.name = "near-miss-short-last-group",
                           .slug = "accumulation-off-by-one",
                           .naive_check = "an update has fewer microbatches than the others"}}};
}
