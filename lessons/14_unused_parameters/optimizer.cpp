// Lesson 14, part "optimizer": whose parameters the optimizer moves, and whose gradients it clears.
// Gradients are views into the engine's buckets here: no second copy of them is kept.
//
// Concept:  an optimizer holds tensors, not a model. Build it from the model that is wrapped, after
//           the last clone or replaced layer. LibTorch's optimizer.zero_grad() detaches gradients
//           in place, which a view does not allow: let the module clear them.
// Symptom:  an optimizer of a copy's parameters steps on, and the model's never move. zero_grad()
//           on a view throws in the second step, the first one that has gradients to clear.
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include "one_process.h"
#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr int kSteps = 6;

// A near miss: the views stay, and what they show is set to zero.
void zero_in_place(RankContext& context, torch::nn::Module& module) {
  context.told().zero_grad("tensor");
  for (const auto& parameter : module.parameters())
    if (parameter.grad().defined()) parameter.grad().zero_();
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group(), {.gradient_as_bucket_view = true});

  const auto to_move = fault("optimizer-built-on-other-parameters") ? module->clone()->parameters()
                                                                    : module->parameters();
  SGD optimizer(to_move, 0.1);

  for (int step = 0; step < kSteps; ++step) {
    const auto everyone = global_batch(step, kBatch * world_size);
    const auto batch = take(data, share_of(rank, world_size, everyone));
    if (fault("zero-grad-on-bucket-view")) {
      optimizer.zero_grad();
    } else if (fault("near-miss-zeroed-in-place")) {
      zero_in_place(context, *module);
    } else {
      context.told().zero_grad("module");
      module->zero_grad();
    }
    const auto outputs = model(batch.inputs.to(context.device()));
    cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
    // A near miss: a warm-up that begins at a learning rate of zero, where nothing moves at first.
    if (fault("near-miss-warmup-from-zero"))
      optimizer.param_groups().front().options().set_lr(0.05 * (step / 2));
    optimizer.step();
  }
}

class WithDisplacement final : public OneProcessOfMlp {
 public:
  using OneProcessOfMlp::OneProcessOfMlp;

  void wrapped(torch::nn::Module& module, const std::string& engine) override {
    OneProcessOfMlp::wrapped(module, engine);
    start_ = flat_parameters(module);
  }
  void finish() override {
    OneProcessOfMlp::finish();
    if (start_.defined())
      add_figure(context(), "displacement",
                 scale_of(flat_parameters(trained()) - start_, flat_parameters(*copy()) - start_));
  }

 private:
  at::Tensor start_;
};

Measured displacement(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "displacement"), .tolerance = 1e-3};
}

Measured steps(const Outcomes& outcomes) {
  return right_steps(outcomes, kSteps);
}

}  // namespace

lockstep::Part optimizer_part() {
  return {
      .name = "optimizer",
      .run = train,
      .broken = {{.slug = "optimizer-built-on-other-parameters",
                  .what = "the optimizer holds the parameters of a copy",
                  .oracle = {"way the weights went over one process's way", displacement},
                  .min_world_size = 1},
                 {.slug = "zero-grad-on-bucket-view",
                  .what = "optimizer.zero_grad() on gradients that are views of buckets",
                  .oracle = {"steps with one process's weights, of the rank with the fewest",
                             steps},
                  .crashes = true,
                  .min_world_size = 1}},
      .near_misses = {{.name = "near-miss-warmup-from-zero",
                       .slug = "optimizer-built-on-other-parameters",
                       .naive_check = "parameters do not move though the optimizer steps"},
                      {.name = "near-miss-zeroed-in-place",
                       .slug = "zero-grad-on-bucket-view",
                       .naive_check = "gradients that are views of buckets are zeroed in place"}},
      .notes = notes<WithDisplacement>};
}
