// Lesson 02, part "buffers": which copy keeps BatchNorm's running statistics.
//
// Concept:  a forward in training mode updates buffers (running mean and variance) of the module it
//           runs on.
// Symptom:  on several devices LibTorch's data_parallel runs copies only, and drops them: the
//           original's running mean stays 0, its variance 1, and evaluation uses those.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

namespace {

using namespace lockstep;
using torch::nn::Sequential;
using torch::nn::SequentialImpl;

constexpr int kSteps = 8;
constexpr std::int64_t kBatchPerDevice = 16;

// An MLP with a BatchNorm, so that there is a buffer to lose.
Sequential batch_norm_mlp() {
  return Sequential(torch::nn::Linear(784, 64), torch::nn::BatchNorm1d(64), torch::nn::ReLU(),
                    torch::nn::Linear(64, 10));
}

void train(RankContext& context, const Fault& fault) {
  const auto devices = context.devices();
  const int count = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatchPerDevice * count * kSteps);
  auto model = batch_norm_mlp();
  model->to(devices[0]);
  SGD optimizer(model->parameters(), 0.01);
  // A near miss: BatchNorm frozen on purpose, as in fine-tuning. Its buffers must not move.
  if (fault("near-miss-frozen-statistics")) model->eval();

  for (int step = 0; step < kSteps; ++step) {
    const auto batch = take(data, global_batch(step, kBatchPerDevice * count));
    optimizer.zero_grad();
    const auto inputs = scatter(batch.inputs, devices);
    const auto targets = scatter(batch.targets, devices);
    auto replicas = replicate(model.ptr(), devices);
    if (fault("replica-buffers-lost")) {
      // As LibTorch's data_parallel: even the first device runs a copy.
      replicas[0] = model->clone();
    } else {
      // The first device runs the module itself, so its buffers move.
    }
    std::vector<at::Tensor> outputs(replicas.size());
    parallel_apply(replicas.size(), [&](std::size_t i) {
      outputs[i] = replicas[i]->as<SequentialImpl>()->forward(inputs[i]);
    });
    for (std::size_t i = 0; i < outputs.size(); ++i)
      cross_entropy(outputs[i], targets[i]).mean().backward();
    reduce_gradients(replicas, std::vector<double>(replicas.size(), 1.0 / count));
    for (std::size_t p = 0; p < model->parameters().size(); ++p)
      model->parameters()[p].mutable_grad() = replicas[0]->parameters()[p].grad();
    optimizer.step();
  }
}

// Keeps what a single device would: a copy runs forward on the first device's parts, with the
// model's weights of each step.
class OneDevice final : public Notes {
 public:
  OneDevice(RankContext& job, const Fault&) : Notes(job) {}

  void replicated(const std::vector<std::shared_ptr<torch::nn::Module>>& copies) override {
    Notes::replicated(copies);
    if (model_) return;
    model_ = model<Sequential>();
    copy_ = Sequential(std::dynamic_pointer_cast<SequentialImpl>(model_->clone()));
  }
  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    part_ = rows_of({fetch.inputs, fetch.targets},
                    {fetch.ids.begin(), fetch.ids.begin() + kBatchPerDevice});
  }
  void update_begins(torch::optim::Optimizer&) override {
    const torch::NoGradGuard no_grad;
    copy_parameters(model_->parameters(), copy_->parameters());
    copy_->train(model_->is_training());
    copy_->forward(part_.inputs.to(context().devices()[0]));
  }
  void finish() override {
    Notes::finish();
    const auto kept = [](const Sequential& module) {
      return module->named_buffers()["1.running_mean"];
    };
    add_figure(context(), "running mean apart",
               (kept(model_) - kept(copy_)).abs().max().item<double>());
  }

 private:
  Sequential model_{nullptr}, copy_{nullptr};
  TensorData part_;
};

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
          .participants = lockstep::Participants::devices,
          .records_transfers = false,  // all go through device 0: that fault is bottleneck.cpp's
          .notes = notes<OneDevice>};
}
