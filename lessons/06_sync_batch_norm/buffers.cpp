// Lesson 06, part "buffers": whose running statistics are evaluated.
//
// Concept:  BatchNorm collects a running mean and variance, which evaluation uses. They are
//           buffers, so the reduction of gradients does not keep them equal. DDP copies rank 0's to
//           all ranks when a forward begins.
// Symptom:  with that switched off, W equal models have W sets of statistics, and the same test
//           images give another loss on every rank.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>

#include <algorithm>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;            // an epoch
constexpr int kEpochs = 2;
constexpr std::int64_t kTestSamples = 256;

// The mean over all ranks in place of each rank's own statistics.
void average_running_statistics(c10d::ProcessGroup& group, const torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (auto& buffer : net.buffers()) {
    if (!buffer.is_floating_point()) continue;  // the count of batches is the same everywhere
    all_reduce(group, buffer);
    buffer /= group.getSize();
  }
}

void train(RankContext& context, const Fault& fault) {
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * kEpochs * context.world_size());
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  auto net = batch_norm_mlp();
  net->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * context.world_size(), .loss_reduction = "mean"});
  probes.attach(*net);
  // A near miss: switched off too, and made equal once an epoch, before they are used.
  const bool once_an_epoch = fault("near-miss-averaged-each-epoch");
  DdpOptions options;
  if (once_an_epoch || fault("buffers-not-synced")) {  // PITFALL buffers-not-synced
    options.broadcast_buffers = false;                 // "It is faster", and nothing complains.
  } else {
    // Nothing: the default is right.
  }
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group(), options);
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  probes.start();

  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    Mean loss_of_epoch, accuracy;
    for (int step = 0; step < kSteps; ++step) {
      const auto mine = own_batch(context, epoch * kSteps + step, kBatch);
      probes.samples("train", mine);
      const auto batch = take(data, mine);
      optimizer.zero_grad();
      const auto outputs = model(batch.inputs.to(context.device()));
      probes.forward(net->is_training());
      const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                  at::Reduction::None);
      const auto loss = each.mean();
      probes.loss(loss, each);
      loss.backward();
      probes.gradients_ready();
      optimizer.step();
      probes.updated(optimizer);
      loss_of_epoch.add(each);
    }
    if (once_an_epoch) average_running_statistics(*context.group(), *net);

    // All ranks evaluate the same images, so all must have the same loss.
    const torch::NoGradGuard no_grad;
    model.eval();
    const auto outputs = model(test.inputs.to(context.device()));
    probes.forward(net->is_training());
    model.train();
    const auto each = torch::cross_entropy_loss(outputs, test.targets.to(context.device()), {},
                                                at::Reduction::None);
    accuracy.add(outputs.argmax(1).cpu() == test.targets);
    auto& losses = context.outcome().figures["image_losses"];  // the last epoch's
    losses.clear();
    for (std::int64_t i = 0; i < kTestSamples; ++i) losses.push_back(each[i].item<double>());
    context.outcome().losses.push_back(loss_of_epoch.value());
    context.outcome().accuracy.push_back(accuracy.value());
  }
}

// For the image on which the ranks differ most.
Measured loss_spread(const Outcomes& outcomes) {
  Measured spread{.expected = 0, .observed = 0, .tolerance = 1e-6};
  for (std::size_t i = 0; i < kTestSamples; ++i) {
    std::vector<double> losses;
    for (const auto& outcome : outcomes) {
      const auto found = outcome.figures.find("image_losses");
      if (found == outcome.figures.end() || found->second.size() <= i)
        return {.expected = 0, .observed = std::numeric_limits<double>::quiet_NaN()};
      losses.push_back(found->second[i]);
    }
    const auto [least, most] = std::minmax_element(losses.begin(), losses.end());
    spread.observed = std::max(spread.observed, *most - *least);
  }
  return spread;
}

}  // namespace

lockstep::Part buffers_part() {
  return {.name = "buffers",
          .run = train,
          .broken = {{.slug = "buffers-not-synced",
                      .what = "DDP without broadcast_buffers: W sets of running statistics",
                      .oracle = {"loss of a test image, spread over the ranks", loss_spread}}},
          .near_misses = {{.name = "near-miss-averaged-each-epoch",
                           .slug = "buffers-not-synced",
                           .naive_check = "broadcast_buffers is off"}}};
}
