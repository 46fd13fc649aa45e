// Lesson 06, part "buffers": whose running statistics are evaluated, and what they hold.
//
// Concept:  BatchNorm collects a running mean and variance, which evaluation uses. They are
//           buffers, so the reduction of gradients does not keep them equal. DDP copies rank 0's to
//           all ranks when a forward begins.
// Symptom:  with that switched off, W equal models have W sets of statistics, and the same test
//           images give another loss on every rank. Without eval(), the test images are normalized
//           by their own batch, and become a part of the statistics that training goes on with.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
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

// A near miss: training batches, without gradients, bring the statistics up to the last weights.
void recalibrate(RankContext& context, DistributedDataParallel<torch::nn::Sequential>& model,
                 const TensorData& data) {
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < kSteps; ++step)
    model(take(data, own_batch(context, step, kBatch)).inputs.to(context.device()));
}

// All ranks evaluate the same images, so all must come to the same figure.
void evaluate(RankContext& context, const Fault& fault,
              DistributedDataParallel<torch::nn::Sequential>& model, const TensorData& test,
              int epoch) {
  const torch::NoGradGuard no_grad;
  const auto ids = all_ids(kTestSamples);
  tell_pass(epoch, kTestSamples, {ids});
  if (fault("evaluation-in-train-mode")) {
    // On every rank BatchNorm takes the test images for a training batch.
  } else {
    model.eval();
  }
  const auto outputs = model(take(test, ids).inputs.to(context.device()));
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
    if (fault("near-miss-recalibrated")) recalibrate(context, model, data);
    if (fault("near-miss-averaged-each-epoch") || fault("near-miss-recalibrated"))
      average_running_statistics(*context.group(), *net);
    evaluate(context, fault, model, test, epoch);
  }
}

// Whenever the rank has evaluated its model, it writes down what each test image loses there, and
// whether BatchNorm has counted them as a batch.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job), test_(fashion_mnist_or_synthetic(Split::test, kTestSamples)) {}

  // The accuracy is that of the test images.
  void loss(const at::Tensor& per_sample, const at::Tensor&, const at::Tensor&) override {
    Notes::loss(per_sample, {}, {});
  }
  void forward_begins(torch::nn::Module& module, const std::vector<at::Tensor>& inputs) override {
    evaluates_ = inputs.front().size(0) == kTestSamples;
    counted_ = batches_in_statistics(module);
  }
  void forward_ended(torch::nn::Module& module) override {
    if (!evaluates_) return;
    end_pass();
    add_figure(context(), "test_batches", batches_in_statistics(module) - counted_);
    if (module.is_training()) return;  // once more would move the statistics
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
  static double batches_in_statistics(const torch::nn::Module& module) {
    return module.named_buffers()["1.num_batches_tracked"].item<double>();
  }

  TensorData test_;
  bool evaluates_ = false;
  double counted_ = 0;  // before the forward
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

Measured test_batches(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "test_batches"), .tolerance = 0};
}

}  // namespace

lockstep::Part buffers_part() {
  return {.name = "buffers",
          .run = train,
          .broken = {{.slug = "buffers-not-synced",
                      .what = "DDP without broadcast_buffers: W sets of running statistics",
                      .oracle = {"loss of a test image, spread over the ranks", loss_spread}},
                     {.slug = "evaluation-in-train-mode",
                      .what = "evaluates without eval(): the test images become a training batch",
                      .oracle = {"batches that an evaluation adds to the running statistics",
                                 test_batches}}},
          .near_misses = {{.name = "near-miss-averaged-each-epoch",
                           .slug = "buffers-not-synced",
                           .naive_check = "broadcast_buffers is off"},
                          {.name = "near-miss-recalibrated",
                           .slug = "evaluation-in-train-mode",
                           .naive_check = "forwards in training mode that no backward follows"}},
          .notes = notes<OwnNotes>};
}
