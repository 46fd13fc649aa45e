// Lesson 12, part "uneven": microbatches of unequal size, as the end of an epoch, sequences of
// unequal length or filtered samples leave them.
//
// Concept:  the mean over an update's samples is sum(loss) / n with n = all its samples. A mean of
//           the microbatches' means weighs every microbatch alike, so a sample in a small one
//           counts more.
// Symptom:  the loss looks right, and the gradient has another direction.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <numeric>
#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

const std::vector<std::int64_t> kSizes{24, 24, 24, 4};  // of an update's microbatches, on each rank
constexpr int kUpdates = 4;

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto samples = std::accumulate(kSizes.begin(), kSizes.end(), std::int64_t{0});
  const auto data = fashion_mnist_or_synthetic(Split::train, samples * kUpdates * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = samples * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  probes.start();
  Mean loss_of_epoch, accuracy;

  for (int update = 0; update < kUpdates; ++update) {
    optimizer.zero_grad();
    std::vector<std::int64_t> everyone(static_cast<std::size_t>(samples * world_size));
    std::iota(everyone.begin(), everyone.end(), update * samples * world_size);
    std::int64_t drawn = 0;  // of this rank's samples of this update
    for (const auto size : kSizes) {
      std::vector<std::int64_t> mine;
      for (std::int64_t i = 0; i < size; ++i, ++drawn)
        mine.push_back(everyone[static_cast<std::size_t>(drawn * world_size + context.rank())]);
      probes.samples("train", mine);
      const auto batch = take(data, mine);
      std::optional<NoSync> no_sync;
      probes.sync_gradients(drawn == samples);
      if (drawn < samples) no_sync.emplace(model.engine());
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                  at::Reduction::None);
      at::Tensor loss;
      if (fault("mean-of-microbatch-means")) {  // PITFALL mean-of-microbatch-means
        loss = each.mean() / static_cast<double>(kSizes.size());
      } else if (fault("near-miss-weighted-means")) {
        // A near miss takes the mean too, and weighs it with the microbatch's share of the samples.
        loss = each.mean() * (static_cast<double>(size) / static_cast<double>(samples));
      } else {
        loss = each.sum() / samples;
      }
      probes.loss(loss, each);
      loss.backward();
      loss_of_epoch.add(each);
      accuracy.add(outputs.argmax(1).cpu() == batch.targets);
    }
    add_figure(context, "gradient_error",
               relative_distance(flat_gradients(*module),
                                 gradient_of_batch(module, take(data, everyone))));
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

// float32 sums in another order differ by about 1e-6.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part uneven_part() {
  return {.name = "uneven",
          .run = train,
          .broken = {{.slug = "mean-of-microbatch-means",
                      .what = "the plain mean of the means of unequal microbatches",
                      .oracle = {"gradient, distance from one process's", gradient_error},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-weighted-means",
                           .slug = "mean-of-microbatch-means",
                           .naive_check = "means of microbatches of unequal size are added up"}}};
}
