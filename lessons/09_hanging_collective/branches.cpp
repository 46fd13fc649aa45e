// Lesson 09, part "branches": what only some ranks do.
//
// Concept:  every rank must come to the same collectives in the same order. A branch on the rank,
//           or on a number that differs by rank, must hold no collective of all ranks; nor may it
//           lead out of the loop. DDP's forward (with buffers) and backward are collectives.
// Symptom:  the ranks that took the branch wait for those that did not, or the other way round,
//           until the timeout: 30 minutes by default in PyTorch with Gloo, 10 with NCCL.
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 8;
constexpr int kEvaluateAt = 3;
constexpr int kDamagedAt = 6;  // the last rank's batch, by a pixel that is no number

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

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const bool is_first = context.rank() == 0;
  const bool is_last = context.rank() == world_size - 1;
  context.group()->setTimeout(context.patience());
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kSteps);
  CountingMlp module;
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  // Near misses: without buffers to send, the wrapper's forward is no collective; and a rank may leave its
  // own batch out, and take part in the step all the same.
  const bool sends_no_buffers = fault("near-miss-wrapper-without-buffers");
  const bool leaves_batch_out = fault("near-miss-batch-left-out");
  DdpOptions options;
  if (sends_no_buffers) options.broadcast_buffers = false;
  DistributedDataParallel<CountingMlp> model(module, context.group(), options);
  probes.engine("distributed_data_parallel");
  torch::optim::SGD optimizer(model.parameters(), 0.05);
  // Near miss: rank 0 has a group to itself, where it waits for nobody.
  const bool has_own_group = fault("near-miss-group-of-one");
  const auto alone = has_own_group ? context.new_group({0}, context.patience()) : nullptr;
  probes.start();
  Mean loss_of_epoch, accuracy;

  probes.pass_begin("train", 0);
  int step = 0;
  for (; step < kSteps; ++step) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kBatch; ++i)
      ids.push_back((step * world_size + context.rank()) * kBatch + i);
    probes.samples("train", ids);
    auto batch = take(data, ids);
    if (step == kDamagedAt && is_last) batch.inputs[0][0] = std::nan("");

    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    probes.forward(true);
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    auto loss = each.mean();
    const bool damaged = !each.isfinite().all().item<bool>();
    if (damaged && leaves_batch_out) {
      loss = torch::zeros({}, each.options());
      for (const auto& parameter : module->parameters()) loss = loss + parameter.sum() * 0;
    }
    bool stop = damaged && !leaves_batch_out;
    // A rank that leaves the loop alone leaves the others in backward.
    if (!fault("local-early-stop"))  // PITFALL local-early-stop
      stop = all_agree(*context.group(), stop).any_yes();
    probes.decision("stop", stop);
    if (stop) break;
    probes.loss(loss, each);
    loss.backward();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    if (!damaged) loss_of_epoch.add(each);

    if (step == kEvaluateAt && is_first) {
      module->eval();
      probes.pass_begin("evaluation", 0);
      at::Tensor scores;
      if (fault(
              "evaluation-through-wrapper-on-one-rank") ||  // PITFALL evaluation-through-wrapper-on-one-rank
          sends_no_buffers) {
        // Sends the buffers first, and no other rank receives them here. (Under no_grad DDP would
        // not send the next forward's, and by luck this broadcast would be taken for that one.)
        scores = model(data.inputs.to(context.device()));
      } else {
        scores = module->forward(data.inputs.to(context.device()));
      }
      probes.forward(false);
      accuracy.add(scores.argmax(1).cpu() == data.targets);
      probes.pass_end("evaluation", 0, 1);
      module->train();
      // Meant to let all ranks wait until rank 0 has evaluated, but inside rank 0's branch.
      if (fault("rank-conditional-collective"))  // PITFALL rank-conditional-collective
        barrier(*context.group());
      if (has_own_group) barrier(*alone);
    }
  }
  probes.pass_end("train", 0, step);
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().accuracy.push_back(accuracy.value());
  barrier(*context.group());
  reach_the_end(context);
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
                       .naive_check = "rank 0 alone calls the wrapper to evaluate"}}};
}
