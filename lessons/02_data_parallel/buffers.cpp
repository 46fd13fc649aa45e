// Lesson 02, part "buffers": which copy keeps BatchNorm's running statistics.
//
// Concept:  a forward in training mode updates buffers (running mean and variance) of the module it
//           runs on.
// Symptom:  on several devices LibTorch's data_parallel runs copies only, and drops them: the
//           original's running mean stays 0, its variance 1, and evaluation uses those.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr int kSteps = 8;
constexpr std::int64_t kBatchPerDevice = 16;

// Article D's MLP with a BatchNorm, so that there is a buffer to lose.
torch::nn::Sequential batch_norm_mlp() {
  return torch::nn::Sequential(torch::nn::Linear(784, 64), torch::nn::BatchNorm1d(64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 10));
}

// What a single device would keep: a copy that runs forward on the first device's parts, with the
// model's weights of each step.
class OneDevice {
 public:
  explicit OneDevice(const torch::nn::Sequential& model) : copy_(model->clone()) {}
  void forward(const torch::nn::Sequential& model, const at::Tensor& inputs) {
    const torch::NoGradGuard no_grad;
    const auto weights = model->parameters();
    for (std::size_t p = 0; p < weights.size(); ++p) copy_->parameters()[p].copy_(weights[p]);
    copy_->train(model->is_training());
    copy_->as<torch::nn::SequentialImpl>()->forward(inputs);
  }
  double distance(const torch::nn::Sequential& model) const {
    const auto kept = copy_->named_buffers()["1.running_mean"];
    return (model->named_buffers()["1.running_mean"] - kept).abs().max().item<double>();
  }

 private:
  std::shared_ptr<torch::nn::Module> copy_;
};

void train(RankContext& context, const Fault& fault) {
  const int count = context.world_size();
  const auto devices = context.devices();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatchPerDevice * count * kSteps);
  auto model = batch_norm_mlp();
  model->to(devices[0]);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  // A near miss: BatchNorm frozen on purpose, as in fine-tuning. Its buffers must not move.
  const bool frozen = fault("near-miss-frozen-statistics");
  model->train(!frozen);
  OneDevice one_device(model);
  Mean loss_of_epoch;

  for (int step = 0; step < kSteps; ++step) {
    const auto rows =
        at::indexing::Slice(step * kBatchPerDevice * count, (step + 1) * kBatchPerDevice * count);
    const auto inputs = scatter(data.inputs.index({rows}), devices);
    const auto targets = scatter(data.targets.index({rows}), devices);
    one_device.forward(model, inputs[0]);
    optimizer.zero_grad();
    auto replicas = replicate(model.ptr(), devices);
    if (fault("replica-buffers-lost")) {  // PITFALL replica-buffers-lost
      replicas[0] =
          model->clone();  // As LibTorch's data_parallel: even the first device runs a copy.
    } else {
      // The first device runs the module itself, so its buffers move.
    }
    for (int i = 0; i < count; ++i) {
      context.probes(i).attach(i == 0 ? *model : *replicas[i]);
      if (step == 0) context.probes(i).start();
    }
    std::vector<at::Tensor> losses(count);
    parallel_apply(count, [&](std::size_t i) {
      auto& replica = *replicas[i]->as<torch::nn::SequentialImpl>();
      losses[i] = torch::cross_entropy_loss(replica.forward(inputs[i]), targets[i]);
      context.probes(static_cast<int>(i)).forward(replica.is_training());
      losses[i].backward();
    });
    reduce_gradients(replicas, std::vector<double>(count, 1.0 / count));
    for (std::size_t p = 0; p < model->parameters().size(); ++p)
      model->parameters()[p].mutable_grad() = replicas[0]->parameters()[p].grad();
    for (const auto& loss : losses) loss_of_epoch.add(loss);
    optimizer.step();
    for (int i = 0; i < count; ++i) context.probes(i).updated(optimizer);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  add_figure(context, "running mean apart", one_device.distance(model));
}

Measured running_mean(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "running mean apart"), .tolerance = 1e-6};
}

}  // namespace

lockstep::Part buffers_part() {
  return {.name = "buffers",
          .run = train,
          .broken = {{.slug = "replica-buffers-lost",
                      .what = "every device runs a temporary copy, the first one too",
                      .oracle = {"running mean, distance from one device's on the same samples",
                                 running_mean}}},
          .near_misses = {{.name = "near-miss-frozen-statistics",
                           .slug = "replica-buffers-lost",
                           .naive_check = "the running mean is still what it was"}},
          .participants = lockstep::Participants::devices};
}
