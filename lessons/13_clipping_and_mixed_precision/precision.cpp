// Lesson 13, part "precision": a sum over ranks in 16 bits. Every batch is of one class, as from a
// data file that is sorted by class. So the gradient of that class's bias is 0.1 - 1 at the start.
//
// Concept:  sending 16 bits instead of 32 halves the traffic. float16 ends at 65504, and 0.9 times
//           the scaler's 65536 just fits. The sum over ranks does not: divide, then cast, then sum.
// Symptom:  every rank's gradient is finite and the sum is not. The step is left out and the scale
//           halved, until W of them fit: about log2(W) steps are lost, and as many bits at the
//           lower end.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "gradients.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kClasses = 10;         // a step of each
constexpr std::int64_t kSamples = 4'000;

// This rank's part of the next batch of one class, in turns.
std::vector<std::int64_t> batch_of_class(const TensorData& data, int wanted, int rank,
                                         int world_size) {
  const auto ids = (data.targets == wanted).nonzero().reshape(-1);
  std::vector<std::int64_t> mine;
  for (std::int64_t i = 0; i < kBatch; ++i)
    mine.push_back(ids[(i * world_size + rank) % ids.size(0)].item<std::int64_t>());
  return mine;
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kSamples);
  torch::nn::Linear model(784, kClasses);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.zero_();  // ten classes, 0.1 each
  }
  model->to(context.device());
  SGD optimizer(model->parameters(), 0.01);
  GradScaler scaler;  // 65536. The reduced gradients are alike, so no rank needs to ask the others

  for (int step = 0; step < kClasses; ++step) {
    const auto batch = take(data, batch_of_class(data, step, rank, world_size));
    optimizer.zero_grad();
    const auto outputs = model->forward(batch.inputs.to(context.device()));
    const auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    scaler.scale(loss).backward();

    for (auto gradient : gradients_of(model->parameters())) {
      if (fault("low-precision-reduction")) {
        auto sum = gradient.to(at::kHalf);
        all_reduce(group, sum);
        gradient.copy_(sum).div_(world_size);
      } else if (fault("near-miss-divided-first")) {
        // A near miss: 16 bits too, but the sum fits. (DDP's fp16 hook casts first, then divides.)
        auto mean = gradient.div(world_size).to(at::kHalf);
        all_reduce(group, mean);
        gradient.copy_(mean);
      } else {
        all_reduce(group, gradient);
        gradient.div_(world_size);
      }
    }
    scaler.step(optimizer);  // divides by the scale first
    scaler.update();
  }
}

// Counts the steps that the scaler leaves out.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void scaled_step(double, bool, bool updates) override { lost_ += updates ? 0 : 1; }
  void finish() override {
    Notes::finish();
    add_figure(context(), "lost", lost_);
  }

 private:
  double lost_ = 0;
};

Measured lost_steps(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "lost"), .tolerance = 0};
}

}  // namespace

lockstep::Part precision_part() {
  return {.name = "precision",
          .run = train,
          .broken = {{.slug = "low-precision-reduction",
                      .what = "gradients that fit float16 are summed over the ranks in float16",
                      .oracle = {"steps lost to overflow", lost_steps}}},
          .near_misses = {{.name = "near-miss-divided-first",
                           .slug = "low-precision-reduction",
                           .naive_check = "gradients are all-reduced in float16"}},
          .notes = notes<OwnNotes>};
}
