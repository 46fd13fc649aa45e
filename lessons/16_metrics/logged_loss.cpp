// Lesson 16, part "logged-loss": the loss that you log is not the loss that you train on.
//
// Concept:  for the log, the loss is averaged over the ranks. For backward it must not be: the
//           wrapper averages the gradients already, and the collective is no part of the graph.
// Symptom:  the log is right. The division by W is part of the graph and the sum is not: the
//           gradient is 1/W of the right one, as with 1/W of the learning rate.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/functional.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 8;

void train(RankContext& context, const Fault& fault) {
  auto& group = *context.group();
  const int world_size = context.world_size();
  const std::int64_t global_batch = kBatch * world_size;
  const auto data = fashion_mnist_or_synthetic(Split::train, global_batch * kSteps);
  Mlp module(784, 32, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = global_batch, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  probes.start();
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  Mean own_loss, accuracy;

  probes.pass_begin("train", 0);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::int64_t> everyone, mine;
    for (std::int64_t i = 0; i < global_batch; ++i) {
      everyone.push_back(step * global_batch + i);
      if (i % world_size == context.rank()) mine.push_back(everyone.back());
    }
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    auto loss = each.mean();
    at::Tensor logged;
    // Two near misses reduce the loss itself too: after backward, where nobody minds; or through a
    // collective that has a gradient, whose sum makes up for the division.
    const bool after_backward = fault("near-miss-reduced-after-backward");
    const bool with_gradient = fault("near-miss-reduced-with-gradient");
    if (fault("loss-all-reduced-in-place")) {  // PITFALL loss-all-reduced-in-place
      all_reduce(group, loss);
      loss = loss / world_size;
      logged = loss;  // Right for the log. And then backward starts from it.
    } else if (with_gradient) {
      loss = functional::all_reduce(context.group(), loss) / world_size;
      logged = loss;
    } else if (!after_backward) {
      logged = loss.detach().clone();
      all_reduce(group, logged);
      logged /= world_size;
    }
    probes.loss(loss, each);
    loss.backward();
    if (after_backward) {
      all_reduce(group, loss);
      logged = loss / world_size;
    }

    const auto expected = gradient_of_batch(module, take(data, everyone));
    add_figure(context, "gradient_scale", scale_of(flat_gradients(*module), expected));
    add_figure(context, "logged", logged.item<double>());
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    own_loss.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
  }
  probes.pass_end("train", 0, kSteps);
  context.outcome().losses.push_back(own_loss.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

Measured gradient_scale(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "gradient_scale"), .tolerance = 1e-3};
}

}  // namespace

lockstep::Part logged_loss_part() {
  return {.name = "logged-loss",
          .run = train,
          .broken = {{.slug = "loss-all-reduced-in-place",
                      .what = "averages the loss itself over the ranks, then calls its backward",
                      .oracle = {"gradient over one process's gradient", gradient_scale}}},
          .near_misses = {{.name = "near-miss-reduced-after-backward",
                           .slug = "loss-all-reduced-in-place",
                           .naive_check = "the loss itself is all-reduced, in place"},
                          {.name = "near-miss-reduced-with-gradient",
                           .slug = "loss-all-reduced-in-place",
                           .naive_check = "backward starts from the mean of all ranks' losses"}}};
}
