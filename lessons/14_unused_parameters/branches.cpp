// Lesson 14, part "branches": a head that some batches do not use.
//
// Concept:  the engine counts: a backward is done when every parameter's gradient has come. Where a
//           forward may leave some out, the engine must be told (find_unused_parameters): then it
//           finds them before backward and counts them itself.
// Symptom:  not told, the rank that left some out does not fill its bucket, the only one here. It
//           reduces nothing and goes on; the others wait inside backward. The rank's next forward
//           says that the last reduction did not finish.
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include "one_process.h"
#include "parts.h"
#include "two_heads.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 6;
constexpr int kStepWithout = 2;  // in this step the last rank's batch does not use the shoe head

bool uses_shoe_head(int step, int rank, int world_size) {
  return step != kStepWithout || rank + 1 != world_size;
}

using Model = DistributedDataParallel<TwoHeads>;

// A near miss: nothing is unused, and the head counts zero times.
void backward_with_both(Model& model, const at::Tensor& inputs, const at::Tensor& targets,
                        bool shoes) {
  const auto [type, shoe] = model(inputs);
  const auto each = type_losses(type, targets) + (shoes ? 1 : 0) * shoe_losses(shoe, targets);
  tell_loss(each, type, targets).mean().backward();
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  TwoHeads module;
  module->to(context.device());

  DdpOptions options;
  if (fault("unused-parameter") || fault("near-miss-zero-times")) {
    options.find_unused_parameters = false;
  } else {
    options.find_unused_parameters = true;
  }
  Model model(module, context.group(), options);
  SGD optimizer(model.parameters(), 0.1);

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    const auto inputs = batch.inputs.to(context.device());
    const auto targets = batch.targets.to(context.device());
    const bool shoes = uses_shoe_head(step, rank, world_size);
    optimizer.zero_grad();
    if (fault("near-miss-zero-times")) {
      backward_with_both(model, inputs, targets, shoes);
      optimizer.step();
      continue;
    }
    const auto [type, shoe] = model(inputs, shoes);
    auto each = type_losses(type, targets);
    if (shoes) each = each + shoe_losses(shoe, targets);
    tell_loss(each, type, targets).mean().backward();
    optimizer.step();
  }
}

// One process: the mean over the ranks' batches, each with or without the shoe head.
class OneProcessOfTwoHeads final : public OneProcessNotes<TwoHeads> {
 public:
  OneProcessOfTwoHeads(RankContext& job, const Fault&) : OneProcessNotes(job) {}

 private:
  at::Tensor loss_of(const TensorData& batch) override {
    const auto [type, shoe] = copy()->forward(batch.inputs);
    auto each = type_losses(type, batch.targets);
    if (shoes_) each = each + shoe_losses(shoe, batch.targets);
    return each.mean();
  }
  void backward(int step) override {
    const int world_size = context().world_size();
    const auto everyone = global_batch(step, kBatch * world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      shoes_ = uses_shoe_head(step, rank, world_size);
      (loss_of(rows_of(data(), share_of(rank, world_size, everyone))) / world_size).backward();
    }
  }

  bool shoes_ = true;
};

Measured steps(const Outcomes& outcomes) {
  return right_steps(outcomes, kSteps);
}

}  // namespace

lockstep::Part branches_part() {
  return {
      .name = "branches",
      .run = train,
      .broken = {{.slug = "unused-parameter",
                  .what = "one rank's batch leaves a head out, and the engine was not told",
                  .oracle = {"steps with one process's weights, of the rank with the fewest",
                             steps},
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-zero-times",
                       .slug = "unused-parameter",
                       .naive_check = "a batch has no use for a head, and nothing looks for it"}},
      .notes = notes<OneProcessOfTwoHeads>};
}
