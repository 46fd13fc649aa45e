// Lesson 16, part "contrastive": a loss over all ranks' features.
//
// Concept:  a contrastive loss needs many samples to tell apart, so ranks gather their features.
//           c10d's collectives are no part of the graph: what they return has no gradient.
// Symptom:  with the rank's own features put back into the gathered ones, everything runs and the
//           loss is right. But features get a gradient from one of W losses only: averaged, the
//           gradient is 1/W of the right one.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/functional.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 24;  // per rank
constexpr std::int64_t kFeatures = 16;
constexpr int kSteps = 6;
constexpr double kTemperature = 0.2;

// Two looks at each image, as it is and mirrored; unit features [N, 2, kFeatures].
template <class Model>
at::Tensor features_of(Model& model, const at::Tensor& images) {
  const auto mirrored = images.view({-1, 28, 28}).flip(2).reshape({-1, 784});
  const auto features = model(at::cat({images, mirrored}));
  return torch::nn::functional::normalize(features).view({2, -1, kFeatures}).transpose(0, 1);
}

// For rows begin .. begin + count - 1, how badly an image's first look finds its own second look
// among those of all images: [count].
at::Tensor contrast(const at::Tensor& features, std::int64_t begin, std::int64_t count) {
  const auto likeness =
      features.select(1, 0).narrow(0, begin, count).mm(features.select(1, 1).t()) / kTemperature;
  const auto own = at::arange(begin, begin + count, likeness.options().dtype(at::kLong));
  return torch::cross_entropy_loss(likeness, own, {}, at::Reduction::None);
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const std::int64_t global_batch = kBatch * world_size;
  const auto data = fashion_mnist_or_synthetic(Split::train, global_batch * kSteps);
  Mlp module(784, 32, kFeatures);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = global_batch, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  probes.start();
  Mlp reference(784, 32, kFeatures);
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  Mean loss_of_epoch;

  probes.pass_begin("train", 0);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::int64_t> everyone, mine;
    for (std::int64_t i = 0; i < global_batch; ++i) {
      everyone.push_back(step * global_batch + i);
      if (i / kBatch == context.rank()) mine.push_back(everyone.back());
    }
    probes.samples("train", mine);
    optimizer.zero_grad();
    const auto own = features_of(model, take(data, mine).inputs.to(context.device()));

    // Two near misses: the loss times W makes up for what is lost; and a rank may take its own rows of
    // the loss only, if the gradients of the gathered ones go back.
    const bool times_world_size = fault("near-miss-loss-times-world-size");
    const bool own_rows = fault("near-miss-own-rows");
    std::vector<at::Tensor> gathered;
    if (fault("gather-loses-graph") || times_world_size) {  // PITFALL gather-loses-graph
      gathered = all_gather(*context.group(), own.detach());
      gathered[static_cast<std::size_t>(context.rank())] = own;  // Only these have a gradient.
    } else {
      gathered = functional::all_gather(context.group(), own);
    }
    const auto each = own_rows ? contrast(at::cat(gathered), context.rank() * kBatch, kBatch)
                               : contrast(at::cat(gathered), 0, global_batch);
    const auto loss = times_world_size ? each.mean() * world_size : each.mean();
    probes.loss(loss, each);
    loss.backward();

    // One process, the same weights, all samples.
    copy_parameters(*module, *reference);
    reference->zero_grad();
    contrast(features_of(reference, take(data, everyone).inputs), 0, global_batch)
        .mean()
        .backward();
    add_figure(context, "gradient_scale",
               scale_of(flat_gradients(*module), flat_gradients(*reference)));
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
  }
  probes.pass_end("train", 0, kSteps);
  context.outcome().losses.push_back(loss_of_epoch.value());
}

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part contrastive_part() {
  return {.name = "contrastive",
          .run = train,
          .broken = {{.slug = "gather-loses-graph",
                      .what = "features are gathered without a way back for their gradients",
                      .oracle = {"gradient over one process's gradient", gradient_scale}}},
          .near_misses = {
              {.name = "near-miss-loss-times-world-size",
               .slug = "gather-loses-graph",
               .naive_check = "features are gathered by a collective that has no gradient"},
              {.name = "near-miss-own-rows",
               .slug = "gather-loses-graph",
               .naive_check = "each rank's loss is of its own samples, though all are gathered"}}};
}
