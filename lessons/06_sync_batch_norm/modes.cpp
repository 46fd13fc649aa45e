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
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 6;
constexpr int kLookAfter = 3;  // steps
constexpr std::int64_t kTestSamples = 256;

// Takes the module, not the wrapper, because only rank 0 calls this. Leaves it in eval mode.
void look_at(RankContext& context, torch::nn::Sequential& net, const TensorData& test) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const auto outputs = net->forward(test.inputs.to(context.device()));
  Mean accuracy;
  accuracy.add(outputs.argmax(1).cpu() == test.targets);
  context.metric("accuracy", "evaluation", accuracy.sum, accuracy.count);
}

void train(RankContext& context, const Fault& fault) {
  context.intent({.global_batch = kBatch * context.world_size(), .loss_reduction = "mean"});
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * context.world_size());
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  auto net = batch_norm_mlp();
  net->to(context.device());
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group());
  SGD optimizer(net->parameters(), 0.05);

  for (int step = 0; step < kSteps; ++step) {
    if (step == kLookAfter) {
      if (context.rank() == 0) look_at(context, net, test);
      if (fault("train-mode-differs-across-ranks")) {
        // Rank 0 stays in eval mode.
      } else if (fault("near-miss-frozen-on-all-ranks")) {
        // A near miss: from here on all ranks go by the statistics they have, as in fine-tuning.
        net->eval();
      } else {
        net->train();
      }
    }
    const auto batch = take(data, own_batch(context, step, kBatch));
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    loss.backward();
    optimizer.step();
  }
}

// Counts the batches that rank 0's statistics, which a checkpoint would hold, do not include.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault)
      : Notes(job), wanted_(fault("near-miss-frozen-on-all-ranks") ? kLookAfter : kSteps) {}

  void wrapped(torch::nn::Module& module, const std::string&) override {
    seen_ = module.named_buffers()["1.num_batches_tracked"];
  }
  void finish() override {
    Notes::finish();
    if (context().rank() == 0 && seen_.defined())
      add_figure(context(), "batches_missing", wanted_ - seen_.item<double>());
  }

 private:
  int wanted_;
  at::Tensor seen_;
};

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
                           .naive_check = "the model is in eval mode while it trains"}},
          .notes = notes<OwnNotes>};
}
