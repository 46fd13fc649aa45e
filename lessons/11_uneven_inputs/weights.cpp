// Lesson 11, part "weights": the ranks' last batches are of unequal size.
//
// Concept:  DDP takes the plain mean of the ranks' gradients. If each is the mean over its own
//           batch, that is the mean over all samples only if the batches are equally large. Else
//           divide the sum of the losses by all ranks' samples: reduce (sum, n), not means.
// Symptom:  no error. A sample in a small batch counts more than one in a large batch, and the
//           gradient has another direction.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 4;

// Samples of a rank's batch in a step: in the last one the further ranks have fewer and fewer.
std::int64_t size_of(int step, int rank) {
  return step + 1 < kSteps ? kBatch : kBatch / (rank + 1);
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const bool equal = fault("near-miss-equal-batches");
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), 0.05);
  probes.start();
  Mean loss_of_epoch, accuracy;
  std::int64_t drawn = 0;  // by all ranks

  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::int64_t> mine, everyone;
    for (int rank = 0; rank < world_size; ++rank)
      for (std::int64_t i = 0; i < (equal ? kBatch : size_of(step, rank)); ++i) {
        everyone.push_back(drawn++);
        if (rank == context.rank()) mine.push_back(everyone.back());
      }
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    auto samples = torch::tensor(each.numel(), at::device(context.device()).dtype(at::kLong));
    all_reduce(*context.group(), samples);
    const auto of_all = samples.item<double>();
    // A near miss sums, and divides the gradients by the samples once they are reduced.
    const bool divide_later = fault("near-miss-sum-and-count");
    at::Tensor loss;
    if (fault("mean-of-local-means")) {  // PITFALL mean-of-local-means
      loss = each.mean();
    } else if (equal) {
      loss = each.mean();  // and right: all batches are as large
    } else {
      // DDP divides by the ranks, so W cancels.
      loss = divide_later ? each.sum() : each.sum() * world_size / of_all;
    }
    probes.loss(loss, each);
    loss.backward();
    if (divide_later)
      for (auto& parameter : module->parameters()) parameter.mutable_grad() *= world_size / of_all;
    add_figure(context, "gradient_error",
               relative_distance(flat_gradients(*module),
                                 gradient_of_batch(module, take(data, everyone))));
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
    accuracy.add(outputs.argmax(1).cpu() == batch.targets);
  }
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
}

// float32 sums in another order differ by about 1e-6.
Measured gradient_error(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_error"), .tolerance = 1e-4};
}

}  // namespace

lockstep::Part weights_part() {
  return {.name = "weights",
          .run = train,
          .broken = {{.slug = "mean-of-local-means",
                      .what = "each rank's loss is the mean of its own batch, however small",
                      .oracle = {"gradient, distance from one process's", gradient_error}}},
          .near_misses = {{.name = "near-miss-equal-batches",
                           .slug = "mean-of-local-means",
                           .naive_check = "each rank's loss is the mean of its own batch"},
                          {.name = "near-miss-sum-and-count",
                           .slug = "mean-of-local-means",
                           .naive_check = "the mean of the ranks' gradients is plain, and their "
                                          "batches are of unequal size"}}};
}
