// Lesson 06, part "conversion": from BatchNorm to SyncBatchNorm, in a model that exists.
//
// Concept:  DDP reduces the parameters that it finds when it is constructed. A layer that is put in
//           later brings parameters that are never reduced.
// Symptom:  each rank updates the new layer by its own gradient, and the replicas drift apart.
//           (Without find_unused_parameters DDP waits for the old layer's gradients, and the second
//           forward raises that the last reduction was not finished.)
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/sync_batch_norm.h>
#include <lockstep/train/watched.h>

#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr double kLearningRate = 0.1;

// LibTorch has no conversion, so this is what one writes: a new layer, where the old one lies and with
// its numbers.
void replace_batch_norm(torch::nn::Sequential& net, const ProcessGroupPtr& group) {
  const auto& old = *net->ptr(1)->as<torch::nn::BatchNorm1dImpl>();
  SyncBatchNorm layer(old.options, group);
  layer->to(old.weight.device());
  copy_parameters(old, *layer);
  *(net->begin() + 1) = torch::nn::AnyModule(layer);  // what forward runs
  net->replace_module("1", layer);                    // what parameters() lists
}

void train(RankContext& context, const Fault& fault) {
  const std::int64_t global = kBatch * context.world_size();
  context.intent({.global_batch = global, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, global * kSteps);
  auto net = batch_norm_mlp();
  net->to(context.device());

  std::optional<DistributedDataParallel<torch::nn::Sequential>> model;
  const auto wrap = [&] {
    model.emplace(net, context.group(), DdpOptions{.find_unused_parameters = true});
  };
  if (fault("sync-bn-after-wrapping")) {
    wrap();
    replace_batch_norm(net, context.group());
  } else if (fault("near-miss-converted-in-place")) {
    // A near miss: late too, but this conversion puts the same tensors into the new layer.
    wrap();
    convert_sync_batchnorm(*net, context.group());
  } else {
    replace_batch_norm(net, context.group());
    wrap();
  }
  SGD optimizer(net->parameters(), kLearningRate);

  for (int step = 0; step < kSteps; ++step) {
    const auto batch = take(data, own_batch(context, step, kBatch));
    optimizer.zero_grad();
    const auto outputs = (*model)(batch.inputs.to(context.device()));
    const auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    loss.backward();
    optimizer.step();
  }
}

// Beside it one process trains on the global batch, with torch's BatchNorm.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job),
        global_(kBatch * job.world_size()),
        data_(fashion_mnist_or_synthetic(Split::train, global_ * kSteps)) {}

  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    Notes::optimizer_made(optimizer);
    one_process_.emplace(batch_norm_mlp(parameters()), kLearningRate);
  }
  void update_begins(torch::optim::Optimizer&) override {
    const auto batch = rows_of(data_, global_batch(step_++, global_));
    one_process_->backward(batch.inputs, batch.targets);
    one_process_->step();
  }
  void finish() override {
    Notes::finish();
    if (!one_process_) return;  // it has failed before that
    add_figure(
        context(), "final_distance",
        relative_distance(flat_parameters(parameters()), flat_parameters(*one_process_->model())));
    context().outcome().reference_losses.push_back(one_process_->mean_loss());
  }

 private:
  std::int64_t global_;
  TensorData data_;
  std::optional<OneProcess<torch::nn::Sequential>> one_process_;
  int step_ = 0;
};

// Eight float32 steps in another order of summation: the correct variant is 1e-7 away.
Measured final_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "final_distance"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part conversion_part() {
  return {
      .name = "conversion",
      .run = train,
      .broken = {{.slug = "sync-bn-after-wrapping",
                  .what = "the layer is replaced after DDP took the old one's parameters",
                  .oracle = {"weights after 8 steps, distance from one process", final_distance}}},
      .near_misses = {{.name = "near-miss-converted-in-place",
                       .slug = "sync-bn-after-wrapping",
                       .naive_check = "BatchNorm is converted after the wrapper was made"}},
      .notes = notes<OwnNotes>};
}
