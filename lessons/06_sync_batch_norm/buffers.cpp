// Lesson 06, part "buffers": whose running statistics are evaluated.
//
// Concept:  BatchNorm collects a running mean and variance, which evaluation uses. They are
//           buffers, so the reduction of gradients does not keep them equal. DDP copies rank 0's to
//           all ranks when a forward begins.
// Symptom:  with that switched off, W equal models have W sets of statistics, and the same test
//           images give another loss on every rank.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <algorithm>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;            // an epoch
constexpr int kEpochs = 2;
constexpr std::int64_t kTestSamples = 256;

// A near miss: not copied either, but made equal once an epoch, before they are used.
void average_running_statistics(c10d::ProcessGroup& group, const torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (auto& buffer : net.buffers()) {
    if (!buffer.is_floating_point()) continue;  // the count of batches is the same everywhere
    all_reduce(group, buffer);
    buffer /= group.getSize();
  }
}

// All ranks evaluate the same images, so all must come to the same figure.
void evaluate(RankContext& context, DistributedDataParallel<torch::nn::Sequential>& model,
              const TensorData& test) {
  const torch::NoGradGuard no_grad;
  model.eval();
  const auto outputs = model(test.inputs.to(context.device()));
  model.train();
  Mean accuracy;
  accuracy.add(outputs.argmax(1).cpu() == test.targets);
  context.metric("accuracy", "evaluation", accuracy.sum, accuracy.count);
}

void train(RankContext& context, const Fault& fault) {
  context.intent({.global_batch = kBatch * context.world_size(), .loss_reduction = "mean"});
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * kEpochs * context.world_size());
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  auto net = batch_norm_mlp();
  net->to(context.device());
  DdpOptions options;
  if (fault("buffers-not-synced") || fault("near-miss-averaged-each-epoch"))
    options.broadcast_buffers = false;  // "It is faster", and nothing complains.
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group(), options);
  SGD optimizer(net->parameters(), 0.05);

  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = take(data, own_batch(context, epoch * kSteps + step, kBatch));
      optimizer.zero_grad();
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
      loss.backward();
      optimizer.step();
    }
    if (fault("near-miss-averaged-each-epoch")) average_running_statistics(*context.group(), *net);
    evaluate(context, model, test);
  }
}

// Whenever the rank has evaluated its model, it writes down what each test image loses there.
class Beside final : public Watch {
 public:
  Beside(RankContext& job, const Fault&)
      : Watch(job), test_(fashion_mnist_or_synthetic(Split::test, kTestSamples)) {}

  // The accuracy is that of the test images.
  void loss(const at::Tensor& per_sample, const at::Tensor&, const at::Tensor&) override {
    Watch::loss(per_sample, {}, {});
  }
  void forward_ended(torch::nn::Module& module) override {
    if (module.is_training()) return;
    end_pass();
    const torch::NoGradGuard no_grad;
    const auto device = context().device();
    const auto outputs = module.as<torch::nn::Sequential>()->forward(test_.inputs.to(device));
    const auto each =
        torch::cross_entropy_loss(outputs, test_.targets.to(device), {}, at::Reduction::None);
    auto& losses = context().outcome().figures["image_losses"];  // the last epoch's
    losses.clear();
    for (std::int64_t i = 0; i < kTestSamples; ++i) losses.push_back(each[i].item<double>());
    Mean accuracy;
    accuracy.add(outputs.argmax(1).cpu() == test_.targets);
    context().outcome().accuracy.push_back(accuracy.value());
  }

 private:
  TensorData test_;
};

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
                           .naive_check = "broadcast_buffers is off"}},
          .watch = beside<Beside>};
}
