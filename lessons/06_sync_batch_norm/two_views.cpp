// Lesson 06, part "two-views": every image is shown twice, as it is and mirrored, and one backward
// follows.
//
// Concept:  DDP copies rank 0's buffers into every rank's, in place, when a forward begins. What a
//           forward has saved for its backward must not change before that.
// Symptom:  forward, forward, backward: the second forward's broadcast overwrites what the first
//           one's BatchNorm has saved. Autograd raises "modified by an inplace operation".
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 6;

at::Tensor mirrored(const at::Tensor& images) {
  return images.reshape({-1, 28, 28}).flip(2).reshape({-1, 784});
}

void train(RankContext& context, const Fault& fault) {
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * context.world_size());
  auto net = batch_norm_mlp();
  net->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = 2 * kBatch * context.world_size(), .loss_reduction = "mean"});
  probes.attach(*net);
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  probes.start();
  Mean loss_of_epoch;

  // One forward of the wrapper, told to the probes.
  const auto forward = [&](const at::Tensor& images) {
    const auto outputs = model(images);
    probes.forward(net->is_training());
    return outputs;
  };

  for (int step = 0; step < kSteps; ++step) {
    const auto mine = own_batch(context, step, kBatch);
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    const auto images = batch.inputs.to(context.device());
    const auto targets = batch.targets.to(context.device());
    optimizer.zero_grad();

    at::Tensor outputs;
    if (fault("buffer-sync-inside-backward")) {  // PITFALL buffer-sync-inside-backward
      const auto first = forward(images);
      outputs = at::cat({first, forward(mirrored(images))});  // Broadcasts into what `first` needs.
    } else if (fault("near-miss-first-view-in-no-sync")) {
      // A near miss: after a forward inside NoSync the next one copies no buffers.
      at::Tensor first;
      {
        const NoSync no_sync(model.engine());
        first = forward(images);
      }
      outputs = at::cat({first, forward(mirrored(images))});
    } else {
      outputs = forward(at::cat({images, mirrored(images)}));  // One forward, one copy.
    }
    const auto each =
        torch::cross_entropy_loss(outputs, at::cat({targets, targets}), {}, at::Reduction::None);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    add_figure(context, "steps", step + 1);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
}

Measured steps_done(const Outcomes& outcomes) {
  double fewest = kSteps;
  for (const auto& outcome : outcomes) {
    const auto found = outcome.figures.find("steps");
    fewest = std::min(fewest, found == outcome.figures.end() ? 0.0 : found->second.back());
  }
  return {.expected = kSteps, .observed = fewest, .tolerance = 0};
}

}  // namespace

lockstep::Part two_views_part() {
  return {
      .name = "two-views",
      .run = train,
      .broken = {{.slug = "buffer-sync-inside-backward",
                  .what = "a second forward, with its broadcast, before the first one's backward",
                  .oracle = {"steps done by the slowest rank", steps_done},
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-first-view-in-no-sync",
                       .slug = "buffer-sync-inside-backward",
                       .naive_check = "the wrapper runs forward twice before one backward"}}};
}
