// Lesson 16, part "contrastive": a loss over all ranks' features.
//
// Concept:  a contrastive loss needs many samples to tell apart, so ranks gather their features.
//           c10d's collectives are no part of the graph: what they return has no gradient.
// Symptom:  with the rank's own features put back into the gathered ones, everything runs and the
//           loss is right. But features get a gradient from one of W losses only: averaged, the
//           gradient is 1/W of the right one.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/functional.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "gradient_scale.h"

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

// A step's global batch is the next kBatch * world_size samples. A rank takes kBatch in a row.
std::vector<std::vector<std::int64_t>> batches_of(int rank, int world_size) {
  std::vector<std::vector<std::int64_t>> batches;
  for (int step = 0; step < kSteps; ++step)
    batches.push_back(global_batch(step * world_size + rank, kBatch));
  return batches;
}

// All ranks' features.
at::Tensor gather(RankContext& context, const at::Tensor& own, const Fault& fault) {
  if (fault("gather-loses-graph") || fault("near-miss-loss-times-world-size")) {
    auto gathered = all_gather(*context.group(), own.detach());
    gathered[static_cast<std::size_t>(context.rank())] = own;  // Only these have a gradient.
    return at::cat(gathered);
  } else {
    return at::cat(functional::all_gather(context.group(), own));
  }
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kSteps);
  Mlp module(784, 32, kFeatures);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.01);

  const auto batches = batches_of(rank, world_size);
  tell_pass(0, data.size(), batches);
  for (const auto& ids : batches) {
    optimizer.zero_grad();
    const auto own = features_of(model, take(data, ids).inputs.to(context.device()));
    const auto gathered = gather(context, own, fault);
    const auto each = fault("near-miss-own-rows") ? contrast(gathered, rank * kBatch, kBatch)
                                                  : contrast(gathered, 0, kBatch * world_size);
    auto loss = tell_loss(each).mean();
    // A near miss: makes up for the gradients that are lost.
    if (fault("near-miss-loss-times-world-size")) loss = loss * world_size;
    loss.backward();
    optimizer.step();
  }
}

// Beside it one process with the same weights has all samples.
class OwnNotes final : public GradientScale {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : GradientScale(job, kFeatures, kBatch * job.world_size(), kSteps) {}

 private:
  at::Tensor loss_of(Mlp& model, const TensorData& batch) override {
    return contrast(features_of(model, batch.inputs), 0, batch.size()).mean();
  }
};

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
      .notes = notes<OwnNotes>};
}
