// Lesson 16, part "contrastive": a loss over all ranks' features.
//
// Concept:  a contrastive loss needs many samples to tell apart, so ranks gather their features.
//           c10d's collectives are no part of the graph: what they return has no gradient.
// Symptom:  with the rank's own features put back into the gathered ones, everything runs and the
//           loss is right. But features get a gradient from one of W losses only: averaged, the
//           gradient is 1/W of the right one.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/functional.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

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

// Step k's global batch is the next kBatch * world_size samples, and each rank's a piece of it.
std::vector<std::vector<std::int64_t>> batches_of(int rank, int world_size) {
  std::vector<std::vector<std::int64_t>> batches;
  for (int step = 0; step < kSteps; ++step)
    batches.push_back(global_batch(step * world_size + rank, kBatch));
  return batches;
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kSteps);
  Mlp module(784, 32, kFeatures);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);
  const bool times_world_size = fault("near-miss-loss-times-world-size");
  const bool own_rows = fault("near-miss-own-rows");

  const auto batches = batches_of(rank, world_size);
  tell_pass(0, data.size(), batches);
  for (const auto& ids : batches) {
    optimizer.zero_grad();
    const auto own = features_of(model, take(data, ids).inputs.to(context.device()));
    std::vector<at::Tensor> gathered;
    if (fault("gather-loses-graph") || times_world_size) {  // PITFALL gather-loses-graph
      gathered = all_gather(*context.group(), own.detach());
      gathered[static_cast<std::size_t>(rank)] = own;  // Only these have a gradient.
    } else {
      gathered = functional::all_gather(context.group(), own);
    }
    // A near miss: a rank may take its own rows only, if the others' gradients come back.
    const auto each = own_rows ? contrast(at::cat(gathered), rank * kBatch, kBatch)
                               : contrast(at::cat(gathered), 0, kBatch * world_size);
    auto loss = tell_loss(each).mean();
    if (times_world_size) loss = loss * world_size;  // A near miss: makes up for what is lost.
    loss.backward();
    optimizer.step();
  }
}

// Beside it one process with the same weights has all samples.
class Beside final : public Watch {
 public:
  Beside(RankContext& job, const Fault&)
      : Watch(job),
        global_batch_(kBatch * job.world_size()),
        data_(fashion_mnist_or_synthetic(Split::train, global_batch_ * kSteps)) {}

  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    Watch::optimizer_made(optimizer);
    one_process_ = Mlp(784, 32, kFeatures);  // after the ranks' model: both draw random numbers
  }
  void update_begins(torch::optim::Optimizer&) override {
    copy(parameters(), one_process_->parameters());
    const auto batch = rows_of(data_, global_batch(step_++, global_batch_));
    one_process_->zero_grad();
    contrast(features_of(one_process_, batch.inputs), 0, global_batch_).mean().backward();
    add_figure(context(), "gradient_scale",
               scale_of(flat_gradients(parameters()), flat_gradients(*one_process_)));
  }

 private:
  static void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from.at(i));
  }

  std::int64_t global_batch_;
  TensorData data_;
  Mlp one_process_{nullptr};
  std::int64_t step_ = 0;
};

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part contrastive_part() {
  return {
      .name = "contrastive",
      .run = train,
      .broken = {{.slug = "gather-loses-graph",
                  .what = "features are gathered without a way back for their gradients",
                  .oracle = {"gradient over one process's gradient", gradient_scale}}},
      .near_misses = {{.name = "near-miss-loss-times-world-size",
                       .slug = "gather-loses-graph",
                       .naive_check = "features are gathered by a collective that has no gradient"},
                      {.name = "near-miss-own-rows",
                       .slug = "gather-loses-graph",
                       .naive_check =
                           "each rank's loss is of its own samples, though all are gathered"}},
      .watch = beside<Beside>};
}
