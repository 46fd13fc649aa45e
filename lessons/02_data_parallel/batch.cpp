// Lesson 02, part "batch": how a batch is cut, and what each part's gradient weighs.
//
// Concept:  chunk() cuts a batch into at most as many parts as there are devices, the last one
//           smaller. The mean over the batch weighs each part by its samples.
// Symptom:  5 samples over 4 devices are 3 parts: with 4 copies of the model the step throws. And
//           the mean of the parts' means is not the batch's mean as soon as one part is smaller.
#include <lockstep/base/error.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr int kSteps = 12;

// Samples of step k. Every other batch has unequal parts, and the last one leaves a device without
// a part: what the end of a data set may look like.
std::int64_t batch_size(int step, int devices) {
  if (step == kSteps - 1) return devices > 2 ? devices + 1 : 1;
  return 16 * devices - (step % 2 == 0 ? 0 : devices - 1);
}

void train(RankContext& context, const Fault& fault) {
  const int count = context.world_size();
  const auto devices = context.devices();
  const auto data = fashion_mnist_or_synthetic(Split::train, 16 * count * kSteps);
  Mlp model(784, 256, 10);
  model->to(devices[0]);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  context.probes().intent({.global_batch = 0, .loss_reduction = "mean"});
  Mean loss_of_epoch;

  std::int64_t position = 0;
  for (int step = 0; step < kSteps; ++step) {
    auto ids = all_ids(batch_size(step, count));
    for (auto& id : ids) id += position;
    position += static_cast<std::int64_t>(ids.size());
    const auto batch = take(data, ids);
    const auto expected = gradient_of_batch(model, batch);
    optimizer.zero_grad();

    const auto inputs = scatter(batch.inputs, devices);
    const auto targets = scatter(batch.targets, devices);
    std::vector<std::int64_t> sizes;
    for (const auto& part : inputs) sizes.push_back(part.size(0));
    context.probes().split(count, sizes);
    add_figure(context, "devices without a part",
               static_cast<double>(devices.size() - inputs.size()));

    std::size_t copies = inputs.size();
    if (fault("odd-batch-split")) {  // PITFALL odd-batch-split
      copies = devices.size();  // One for each device that was asked for, whatever the batch gave.
    }
    const auto replicas = replicate(model.ptr(), {devices.begin(), devices.begin() + copies});
    if (replicas.size() != inputs.size())
      throw Error("must have as many inputs as modules: a batch of " + std::to_string(ids.size()) +
                  " over " + std::to_string(devices.size()) + " devices is cut into " +
                  std::to_string(inputs.size()) + ", and " + std::to_string(replicas.size()) +
                  " modules wait for a part");

    std::vector<double> weights(copies);
    for (std::size_t i = 0; i < copies; ++i) {
      if (fault("unequal-chunk-mean")) {  // PITFALL unequal-chunk-mean
        weights[i] = 1.0 / static_cast<double>(copies);
      } else {
        weights[i] = static_cast<double>(sizes[i]) / static_cast<double>(ids.size());
      }
    }
    std::vector<at::Tensor> losses(copies);
    for (std::size_t i = 0; i < copies; ++i) {
      auto& probes = context.probes(static_cast<int>(i));
      probes.attach(*replicas[i]);
      if (step == 0) probes.start();
      std::vector<std::int64_t> part_ids(ids.begin(), ids.begin() + sizes[i]);
      ids.erase(ids.begin(), ids.begin() + sizes[i]);
      probes.samples("train", part_ids);
    }
    parallel_apply(copies, [&](std::size_t i) {
      auto& replica = *replicas[i]->as<MlpImpl>();
      losses[i] = torch::cross_entropy_loss(replica.forward(inputs[i]), targets[i], {},
                                            at::Reduction::None);
      context.probes(static_cast<int>(i)).forward(replica.is_training());
      losses[i].mean().backward();
    });
    reduce_gradients(replicas, weights);

    add_figure(context, "gradient_error", relative_distance(flat_gradients(*model), expected));
    for (std::size_t i = 0; i < copies; ++i) {
      loss_of_epoch.add(losses[i]);
      context.probes(static_cast<int>(i)).gradients_ready();
    }
    optimizer.step();
    for (int i = 0; i < count; ++i) context.probes(i).updated(optimizer);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
}

Measured finished_batches(const Outcomes& outcomes) {
  const auto& figures = outcomes.at(0).figures;
  const auto found = figures.find("gradient_error");
  return {.expected = kSteps,
          .observed = found == figures.end() ? 0.0 : static_cast<double>(found->second.size()),
          .tolerance = 0};
}

Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part batch_part() {
  return {
      .name = "batch",
      .run = train,
      .broken = {{.slug = "odd-batch-split",
                  .what = "as many copies as devices, though the batch gave fewer parts",
                  .oracle = {"batches trained", finished_batches},
                  .crashes = true},
                 {.slug = "unequal-chunk-mean",
                  .what = "plain mean of the parts' means, though one part is smaller",
                  .oracle = {"reduced gradient, distance from the whole batch's", gradient_error}}},
      .participants = lockstep::Participants::devices};
}
