// Lesson 13, part "clipping": which gradient is clipped, and by which norm. The reduction is by
// hand, so that both sides of it can be seen.
//
// Concept:  clipping limits the length of the global batch's gradient. After the reduction all
//           ranks hold that gradient, so each computes its norm alone.
// Symptom:  clipped before the reduction, long gradients lose weight in the mean, whose direction
//           changes. With squares summed over the ranks, the norm is sqrt(W) times too long, and
//           gradients are cut to max_norm / sqrt(W): here in every step.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>

#include <cmath>

#include "gradients.h"
#include "parts.h"

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

// Every rank squares its own share of the parameters' gradients: all of them once, over all ranks.
double norm_by_shards(c10d::ProcessGroup& group, const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> mine;
  for (std::size_t i = static_cast<std::size_t>(group.getRank()); i < gradients.size();
       i += static_cast<std::size_t>(group.getSize()))
    mine.push_back(gradients[i]);
  return std::sqrt(sum_over_ranks(group, std::pow(norm_of(mine), 2)));
}

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  torch::manual_seed(context.seed());
  Mlp model(784, 64, 10);
  model->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.attach(*model);
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  probes.start();
  // A near miss: so much is allowed that no rank's own clip shortens anything.
  const bool generous = fault("near-miss-nothing-to-clip");
  const double max_norm = generous ? 1e3 : kMaxNorm;
  Mean loss_of_epoch, accuracy;

  for (int step = 0; step < kSteps; ++step) {
    const auto ids = global_batch(step, kBatch, context.rank(), world_size);
    probes.samples("train", ids.mine);
    const auto batch = take(data, ids.mine);
    optimizer.zero_grad();
    const auto outputs = model->forward(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();

    const auto gradients = gradients_of(*model);
    const auto expected = gradient_of_batch(model, take(data, ids.everyone));
    const double expected_norm = expected.norm().item<double>();
    if (generous || fault("clip-before-reduction")) {  // PITFALL clip-before-reduction
      const double norm = norm_of(gradients);          // of this rank's own
      probes.clip(max_norm, norm);
      clip(gradients, max_norm, norm);
      average(group, gradients);
    } else {
      average(group, gradients);
      double norm = 0;
      if (fault("norm-reduced-twice")) {  // PITFALL norm-reduced-twice
        norm = std::sqrt(sum_over_ranks(group, std::pow(norm_of(gradients), 2)));
      } else {
        // A near miss sums squares over the ranks too: each has those of another part.
        norm = fault("near-miss-norm-by-shards") ? norm_by_shards(group, gradients)
                                                 : norm_of(gradients);
      }
      add_figure(context, "norm_ratio", norm / expected_norm);
      probes.clip(max_norm, norm);
      clip(gradients, max_norm, norm);
    }
    add_figure(context, "gradient_error",
               relative_distance(flat_gradients(*model),
                                 expected * std::min(1.0, max_norm / expected_norm)));
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured norm_ratio(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "norm_ratio"), .tolerance = 1e-3};
}

// float32 sums in another order differ by about 1e-6.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part clipping_part() {
  return {
      .name = "clipping",
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
                       .naive_check = "each rank clips its own gradient before the reduction"}}};
}
