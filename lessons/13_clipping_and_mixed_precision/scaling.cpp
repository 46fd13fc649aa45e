// Lesson 13, part "scaling": clipping a gradient whose loss was scaled.
//
// Concept:  float16 rounds numbers below 3e-8 to zero. So the loss is multiplied by a large scale,
//           and the gradients are divided by it before they are used. max_norm is meant for
//           gradients without the scale.
// Symptom:  clipped before they are divided, all gradients here are cut to max_norm, and then
//           divided: the optimizer gets max_norm / scale on every batch. The loss hardly moves.
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <algorithm>

#include "gradients.h"
#include "oracle.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr double kMaxNorm = 0.1;  // shorter than any gradient here
constexpr double kScale = 1024;

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  torch::manual_seed(context.seed());
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.5);
  GradScaler scaler({.init_scale = kScale});

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    optimizer.zero_grad();
    at::Tensor each;
    {
      const Autocast autocast(context.device().type(), at::kHalf);
      const auto outputs = model(batch.inputs.to(context.device()));
      each = cross_entropy(outputs, batch.targets.to(context.device()));
    }
    scaler.scale(each.mean()).backward();  // DDP reduces

    const auto gradients = gradients_of(module->parameters());
    if (fault("clip-before-unscale")) {
      clip(gradients, kMaxNorm, norm_of(gradients));
      scaler.unscale_(optimizer);
    } else if (fault("near-miss-scaled-norm")) {
      // A near miss: what is allowed is scaled as well.
      clip(gradients, kMaxNorm * scaler.get_scale(), norm_of(gradients));
      scaler.unscale_(optimizer);
    } else {
      scaler.unscale_(optimizer);
      clip(gradients, kMaxNorm, norm_of(gradients));
    }
    scaler.step(optimizer);
    scaler.update();
  }
}

// Beside it one process computes the gradient of each global batch, without a scale.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job), one_process_(job, Mlp(784, 64, 10), kBatch * job.world_size(), kSteps) {}

  void scaled_step(double, bool, bool) override {
    const double norm = one_process_(step_++, parameters()).norm().item<double>();
    add_figure(context(), "norm_ratio",
               norm_of(gradients_of(parameters())) / std::min(kMaxNorm, norm));
  }

 private:
  OneProcessGradient one_process_;
  std::int64_t step_ = 0;
};

Measured norm_ratio(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "norm_ratio"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part scaling_part() {
  return {.name = "scaling",
          .run = train,
          .broken = {{.slug = "clip-before-unscale",
                      .what = "gradients are clipped first, then divided by the loss's scale",
                      .oracle = {"norm the optimizer gets, over one process's clipped norm",
                                 norm_ratio},
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-scaled-norm",
                           .slug = "clip-before-unscale",
                           .naive_check = "the clip comes before unscale_()"}},
          .notes = notes<OwnNotes>};
}
