// Lesson 06, part "modes": train() and eval() are switched on every rank, or on none.
//
// Concept:  the mode is a flag in each rank's own copy of the model. In eval mode BatchNorm uses
//           its running statistics and does not update them.
// Symptom:  rank 0 evaluates the test set and stays in eval mode. Its gradients are those of
//           another normalization, its running statistics no longer change, and DDP copies those to
//           all ranks. With SyncBatchNorm the job would stall: the other ranks call an all-gather,
//           and rank 0 the gradients' all-reduce.
#include <lockstep/lesson/figures.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 6;
constexpr int kLookAfter = 3;  // steps
constexpr std::int64_t kTestSamples = 256;

void train(RankContext& context, const Fault& fault) {
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * context.world_size());
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  auto net = batch_norm_mlp();
  net->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * context.world_size(), .loss_reduction = "mean"});
  probes.attach(*net);
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group());
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  probes.start();
  // A near miss: from here on all ranks go by the statistics they have, as in fine-tuning.
  const bool freeze = fault("near-miss-frozen-on-all-ranks");
  Mean loss_of_epoch;

  for (int step = 0; step < kSteps; ++step) {
    if (step == kLookAfter) {
      if (context.rank() == 0) {  // The module, not the wrapper: the others are not here.
        const torch::NoGradGuard no_grad;
        net->eval();
        const auto outputs = net->forward(test.inputs.to(context.device()));
        probes.forward(net->is_training());
        Mean accuracy;
        accuracy.add(outputs.argmax(1).cpu() == test.targets);
        context.outcome().accuracy.push_back(accuracy.value());
      }
      if (fault("train-mode-differs-across-ranks")) {  // PITFALL train-mode-differs-across-ranks
        // Nothing: rank 0 stays in eval mode.
      } else {
        net->train(!freeze);
      }
    }
    const auto mine = own_batch(context, step, kBatch);
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    probes.forward(net->is_training());
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    const auto loss = each.mean();
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
  }
  // What a checkpoint would hold: rank 0's.
  const auto seen = net->named_buffers()["1.num_batches_tracked"].item<double>();
  if (context.rank() == 0)
    add_figure(context, "batches_missing", (freeze ? kLookAfter : kSteps) - seen);
  context.outcome().losses.push_back(loss_of_epoch.value());
}

Measured batches_missing(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "batches_missing"), .tolerance = 0};
}

}  // namespace

lockstep::Part modes_part() {
  return {.name = "modes",
          .run = train,
          .broken = {{.slug = "train-mode-differs-across-ranks",
                      .what = "rank 0 stays in eval mode after a look at the test set",
                      .oracle = {"training batches that rank 0's running statistics lack",
                                 batches_missing}}},
          .near_misses = {{.name = "near-miss-frozen-on-all-ranks",
                           .slug = "train-mode-differs-across-ranks",
                           .naive_check = "the model is in eval mode while it trains"}}};
}
