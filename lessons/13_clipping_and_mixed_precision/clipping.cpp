// Lesson 13, part "clipping": which gradient is clipped, and by which norm. The reduction is by
// hand, so that both sides of it can be seen.
//
// Concept:  clipping limits the length of the global batch's gradient. After the reduction all
//           ranks hold that gradient, so each computes its norm alone.
// Symptom:  clipped before the reduction, long gradients lose weight in the mean, whose direction
//           changes. With squares summed over the ranks, the norm is sqrt(W) times too long, and
//           gradients are cut to max_norm / sqrt(W): here in every step.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <cmath>

#include "gradients.h"
#include "oracle.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr double kMaxNorm = 0.1;  // shorter than any gradient here

double sum_over_ranks(c10d::ProcessGroup& group, double value) {
  auto sum = at::full({1}, value, at::device(device_of(group)).dtype(at::kDouble));
  all_reduce(group, sum);
  return sum.item<double>();
}

// A near miss: every rank squares its own share of the gradients, so each is counted once.
double norm_by_shards(c10d::ProcessGroup& group, const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> mine;
  for (std::size_t i = static_cast<std::size_t>(group.getRank()); i < gradients.size();
       i += static_cast<std::size_t>(group.getSize()))
    mine.push_back(gradients[i]);
  return std::sqrt(sum_over_ranks(group, std::pow(norm_of(mine), 2)));
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  torch::manual_seed(context.seed());
  Mlp model(784, 64, 10);
  model->to(context.device());
  SGD optimizer(model->parameters(), 0.5);

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    optimizer.zero_grad();
    const auto outputs = model->forward(batch.inputs.to(context.device()));
    cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();

    const auto gradients = gradients_of(model->parameters());
    if (fault("clip-before-reduction")) {
      clip(gradients, kMaxNorm, norm_of(gradients));  // by the norm of this rank's own
      average(group, gradients);
    } else if (fault("near-miss-nothing-to-clip")) {
      // A near miss: so large a norm is allowed that no rank's own clip shortens anything.
      clip(gradients, 1e3, norm_of(gradients));
      average(group, gradients);
    } else {
      average(group, gradients);
      double norm = norm_of(gradients);
      if (fault("norm-reduced-twice")) {
        norm = std::sqrt(sum_over_ranks(group, std::pow(norm, 2)));
      } else if (fault("near-miss-norm-by-shards")) {
        norm = norm_by_shards(group, gradients);
      }
      clip(gradients, kMaxNorm, norm);
    }
    optimizer.step();
  }
}

// Beside it one process computes the gradient of each global batch, and its clipped one.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job), one_process_(job, Mlp(784, 64, 10), kBatch * job.world_size(), kSteps) {}

  void clip(double max_norm, const at::Tensor& norm) override {
    const auto gradient = one_process_(step_++, parameters());
    const double expected = gradient.norm().item<double>();
    add_figure(context(), "norm_ratio", norm.item<double>() / expected);
    clipped_ = gradient * std::min(1.0, max_norm / expected);
  }
  void update_begins(torch::optim::Optimizer&) override {
    add_figure(context(), "gradient_error",
               relative_distance(flat_gradients(parameters()), clipped_));
  }

 private:
  OneProcessGradient one_process_;
  std::int64_t step_ = 0;
  at::Tensor clipped_;
};

Measured norm_ratio(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "norm_ratio"), .tolerance = 1e-3};
}

// float32 sums in another order differ by about 1e-6.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part clipping_part() {
  return {.name = "clipping",
          .run = train,
          .broken = {{.slug = "norm-reduced-twice",
                      .what = "the norm of a reduced gradient is summed over the ranks again",
                      .oracle = {"norm clipped by, over one process's", norm_ratio}},
                     {.slug = "clip-before-reduction",
                      .what = "each rank clips its own gradient, then they are averaged",
                      .oracle = {"clipped gradient, distance from one process's", gradient_error}}},
          .near_misses = {{.name = "near-miss-norm-by-shards",
                           .slug = "norm-reduced-twice",
                           .naive_check = "squares of reduced gradients are summed over the ranks"},
                          {.name = "near-miss-nothing-to-clip",
                           .slug = "clip-before-reduction",
                           .naive_check = "each rank clips its own gradient before the reduction"}},
          .notes = notes<OwnNotes>};
}
