// Lesson 09, part "branches": what only some ranks do.
//
// Concept:  every rank must come to the same collectives in the same order. A branch on the rank,
//           or on a number that differs by rank, must hold no collective of all ranks; nor may it
//           lead out of the loop. DDP's forward (with buffers) and backward are collectives.
// Symptom:  the ranks that took the branch wait for those that did not, or the other way round,
//           until the timeout: 30 minutes by default in PyTorch with Gloo, 10 with NCCL.
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr std::size_t kEvaluateAt = 3;
constexpr std::size_t kDamagedAt = 6;  // the last rank's batch, by a pixel that is no number

// A model with a buffer, which DDP sends from rank 0 to all when a forward begins.
struct CountingMlpImpl : torch::nn::Module {
  CountingMlpImpl() {
    mlp = register_module("mlp", Mlp(784, 32, 10));
    seen = register_buffer("seen", torch::zeros({}));
  }
  at::Tensor forward(const at::Tensor& inputs) {
    if (is_training()) seen.add_(inputs.size(0));
    return mlp->forward(inputs);
  }
  Mlp mlp{nullptr};
  at::Tensor seen;
};
TORCH_MODULE(CountingMlp);

using Model = DistributedDataParallel<CountingMlp>;

// Near miss: a rank may leave its own batch out, and take part in the step all the same.
at::Tensor loss_of_nothing(const torch::nn::Module& module) {
  auto loss = torch::zeros({}, module.parameters().front().options());
  for (const auto& parameter : module.parameters()) loss = loss + parameter.sum() * 0;
  return loss;
}

// Near miss: rank 0 has a group to itself, where it waits for nobody.
void wait_in_a_group_of_one(RankContext& context) {
  const auto alone = context.new_group({0}, context.patience());
  if (context.rank() == 0) barrier(*alone);
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const bool is_first = context.rank() == 0, is_last = context.rank() == world_size - 1;
  auto& group = *context.group();
  group.setTimeout(context.patience());
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kSteps);
  CountingMlp module;
  module->to(context.device());
  auto model = fault("near-miss-wrapper-without-buffers")
                   ? Model(module, context.group(), {.broadcast_buffers = false})
                   : Model(module, context.group());
  SGD optimizer(model.parameters(), 0.05);

  const auto batches = batches_of(context, kSteps, kBatch);
  for (std::size_t step = 0; step < batches.size(); ++step) {
    auto batch = take(data, batches[step]);
    if (step == kDamagedAt && is_last) batch.inputs[0][0] = std::nan("");
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto targets = batch.targets.to(context.device());
    const auto each = torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
    const bool damaged = !each.isfinite().all().item<bool>();
    bool stop = damaged;
    if (fault("local-early-stop")) {
      // A rank that leaves the loop alone leaves the others in backward.
    } else if (fault("near-miss-batch-left-out")) {
      stop = false;
    } else {
      stop = all_agree(group, damaged).any_yes();
    }
    context.decision("stop", stop);
    if (stop) break;
    if (fault("near-miss-batch-left-out") && damaged) {
      loss_of_nothing(*module).backward();
    } else {
      tell_loss(each, outputs, targets).mean().backward();
    }
    optimizer.step();

    if (step == kEvaluateAt && is_first) {
      module->eval();
      if (fault("evaluation-through-wrapper-on-one-rank") ||
          fault("near-miss-wrapper-without-buffers")) {
        // Sends the buffers first, and no other rank receives them here. (Under no_grad DDP would
        // not send the next forward's, and by luck this broadcast would be taken for that one.)
        evaluate(context, model, data);
      } else {
        evaluate(context, module, data);
      }
      module->train();
      // Meant to let all ranks wait until rank 0 has evaluated, but inside rank 0's branch.
      if (fault("rank-conditional-collective")) barrier(group);
    }
    if (fault("near-miss-group-of-one") && step == kEvaluateAt) wait_in_a_group_of_one(context);
  }
  barrier(group);
}

}  // namespace

lockstep::Part branches_part() {
  const Oracle oracle{"ranks that came to the end of training", ranks_at_the_end};
  return {
      .name = "branches",
      .run = train,
      .broken = {{.slug = "rank-conditional-collective",
                  .what = "rank 0 alone calls a barrier, after evaluating",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "local-early-stop",
                  .what = "a rank whose loss is no number leaves the loop, and the others do not",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "evaluation-through-wrapper-on-one-rank",
                  .what = "rank 0 alone evaluates, through DDP",
                  .oracle = oracle,
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-group-of-one",
                       .slug = "rank-conditional-collective",
                       .naive_check = "a barrier inside of `if (rank == 0)`"},
                      {.name = "near-miss-batch-left-out",
                       .slug = "local-early-stop",
                       .naive_check = "one rank's loss is no number, and training goes on"},
                      {.name = "near-miss-wrapper-without-buffers",
                       .slug = "evaluation-through-wrapper-on-one-rank",
                       .naive_check = "rank 0 alone calls the wrapper to evaluate"}},
      .notes = notes<AtTheEnd>};
}
