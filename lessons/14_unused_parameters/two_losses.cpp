// Lesson 14, part "two-losses": two losses on one trunk.
//
// Concept:  forward() arms one reduction, which waits for one gradient of each parameter. Add the
//           losses and go backward once.
// Symptom:  two backwards from one forward: the first brings the trunk's gradient and one head's;
//           the second brings the other head's and the trunk's again, and the engine throws.
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

using Model = DistributedDataParallel<TwoHeads>;

// A near miss: a forward and a backward for each loss, the first of them without a reduction.
void backwards_apart(Model& model, const at::Tensor& inputs, const at::Tensor& targets) {
  {
    const NoSync no_sync(model.engine());
    const auto type = std::get<0>(model(inputs));
    tell_loss(type_losses(type, targets), type, targets).mean().backward();
  }
  const auto shoe = std::get<1>(model(inputs));
  tell_loss(shoe_losses(shoe, targets)).mean().backward();
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  TwoHeads module;
  module->to(context.device());
  auto model = fault("near-miss-backwards-apart")
                   ? Model(module, context.group(), {.find_unused_parameters = true})
                   : Model(module, context.group());
  SGD optimizer(model.parameters(), 0.1);

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    const auto inputs = batch.inputs.to(context.device());
    const auto targets = batch.targets.to(context.device());
    optimizer.zero_grad();
    if (fault("near-miss-backwards-apart")) {
      backwards_apart(model, inputs, targets);
      optimizer.step();
      continue;
    }
    const auto [type, shoe] = model(inputs);
    const auto of_type = type_losses(type, targets), of_shoe = shoe_losses(shoe, targets);
    if (fault("parameter-ready-twice")) {
      tell_loss(of_type, type, targets).mean().backward({}, /*keep_graph=*/true);
      tell_loss(of_shoe).mean().backward();
    } else {
      tell_loss(of_type + of_shoe, type, targets).mean().backward();
    }
    optimizer.step();
  }
}

class OneProcessOfTwoHeads final : public OneProcessNotes<TwoHeads> {
 public:
  OneProcessOfTwoHeads(RankContext& job, const Fault&) : OneProcessNotes(job) {}

 private:
  at::Tensor loss_of(const TensorData& batch) override {
    const auto [type, shoe] = copy()->forward(batch.inputs);
    return (type_losses(type, batch.targets) + shoe_losses(shoe, batch.targets)).mean();
  }
};

Measured steps(const Outcomes& outcomes) {
  return right_steps(outcomes, kSteps);
}

}  // namespace

lockstep::Part two_losses_part() {
  return {.name = "two-losses",
          .run = train,
          .broken = {{.slug = "parameter-ready-twice",
                      .what = "two backwards from one forward share the trunk",
                      .oracle = {"steps with one process's weights, of the rank with the fewest",
                                 steps},
                      .crashes = true,
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-backwards-apart",
                           .slug = "parameter-ready-twice",
                           .naive_check =
                               "a parameter's gradient comes from two backwards of one update"}},
          .notes = notes<OneProcessOfTwoHeads>};
}
