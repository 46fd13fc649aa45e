// Lesson 13, part "overflow": one rank's gradient overflows. Who leaves the step out? The scaler is
// written out here; the one of train/grad_scaler.h asks the other ranks if it is given their group.
//
// Concept:  a step whose gradients are not finite is left out, and the scale halved. Replicas stay
//           equal only if all ranks decide alike whether to update.
// Symptom:  each rank looks at its own gradients. The one that overflowed stays behind by an
//           update, the replicas drift apart, and nothing stops. (If the skip leaves out a
//           collective too, the others wait: lesson 09.)
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "gradients.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr int kDamagedStep = 2;
constexpr float kDamaged = 1e6F;  // float16 ends at 65504

// Collective: true on all ranks where it is true on one.
bool on_any_rank(c10d::ProcessGroup& group, bool value) {
  auto flag = at::full({1}, value ? 1 : 0, at::device(device_of(group)).dtype(at::kFloat));
  all_reduce(group, flag, c10d::ReduceOp::MAX);
  return flag.item<float>() != 0;
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  torch::manual_seed(context.seed());
  Mlp model(784, 64, 10);
  model->to(context.device());
  SGD optimizer(model->parameters(), 0.05);
  double scale = 1024;

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    auto batch = take(data, share_of(rank, world_size, everyone));
    if (step == kDamagedStep && rank == world_size - 1) batch.inputs[0].fill_(kDamaged);
    optimizer.zero_grad();
    at::Tensor each;
    {
      const Autocast autocast(context.device().type(), at::kHalf);
      const auto outputs = model->forward(batch.inputs.to(context.device()));
      each = cross_entropy(outputs, batch.targets.to(context.device()));
    }
    (each.mean() * scale).backward();
    const auto gradients = gradients_of(model->parameters());
    for (auto gradient : gradients) gradient /= scale;

    const bool found = !are_finite(gradients);
    bool skip = found;
    if (fault("local-overflow-skip")) {
      // Each rank goes by what it has found itself.
    } else if (fault("near-miss-checked-after-reduction")) {
      // A near miss asks nobody: it looks at the reduced gradients below.
    } else {
      skip = on_any_rank(group, found);
    }

    // Every rank takes part in the reduction, whatever it has found, so none waits.
    if (fault("near-miss-checked-after-reduction")) {
      average(group, gradients);  // a NaN reaches all ranks
      skip = !are_finite(gradients);
    } else {
      if (found)
        for (auto gradient : gradients) gradient.zero_();
      average(group, gradients);
    }

    tell_scaled_step(scale, found, !skip);
    if (skip) {
      scale /= 2;
    } else {
      optimizer.step();
    }
  }
}

// Counts the updates. The loss of a step that was left out may be a NaN, and is not in the mean.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
            const at::Tensor& targets) override {
    per_sample_ = per_sample.detach();
    outputs_ = outputs.detach();
    targets_ = targets;
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    ++updates_;
    Notes::loss(per_sample_, outputs_, targets_);
    Notes::update_ended(optimizer);
  }
  void finish() override {
    Notes::finish();
    add_figure(context(), "updates", updates_);
  }

 private:
  double updates_ = 0;
  at::Tensor per_sample_, outputs_, targets_;
};

Measured spread_of_updates(const Outcomes& outcomes) {
  return {.expected = 0, .observed = spread(outcomes, "updates"), .tolerance = 0};
}

}  // namespace

lockstep::Part overflow_part() {
  return {.name = "overflow",
          .run = train,
          .broken = {{.slug = "local-overflow-skip",
                      .what = "a rank whose gradient overflows leaves the step out by itself",
                      .oracle = {"updates made, spread over the ranks", spread_of_updates}}},
          .near_misses = {{.name = "near-miss-checked-after-reduction",
                           .slug = "local-overflow-skip",
                           .naive_check = "no rank asks the others before it leaves a step out"}},
          .notes = notes<OwnNotes>};
}
