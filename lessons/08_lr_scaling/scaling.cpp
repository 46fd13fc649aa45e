// Lesson 08, part "scaling": an epoch on W ranks has 1/W of the updates.
//
// Concept:  each update goes along the mean of W gradients. While the weights change little, it
//           points where W updates of one rank would lead, and is about as long as one of them. The
//           linear rule makes it W times as long (SGD; Goyal et al. 2017).
// Symptom:  with the rate that suited one rank, an epoch moves the weights about 1/W of the way.
//           Nothing fails.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <optional>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;  // per rank
constexpr std::int64_t kUpdates = 24;
constexpr double kReferenceRate = 0.002;  // it suits one rank

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  context.intent({.reference_lr = kReferenceRate, .reference_world_size = 1});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kUpdates);
  Mlp module(784, 32, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());

  double rate = kReferenceRate;
  if (fault("lr-not-scaled")) {
    // The rate stays the one that suited one rank.
  } else if (fault("near-miss-summed-loss")) {
    // A near miss: the losses are summed below, and the gradient is W times as long instead.
  } else {
    rate *= world_size;
  }
  SGD optimizer(model.parameters(), rate);

  for (std::int64_t update = 0; update < kUpdates; ++update) {
    const auto everyone = global_batch(update, kBatch * world_size);
    const auto batch = take(data, share_of(context.rank(), world_size, everyone));
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    auto loss = cross_entropy(outputs, batch.targets.to(context.device())).mean();
    if (fault("near-miss-summed-loss")) loss = loss * world_size;
    loss.backward();
    optimizer.step();
  }
}

// Beside it one rank trains alone on the same data: W times as many updates of the reference rate.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&)
      : Notes(job),
        data_(fashion_mnist_or_synthetic(Split::train, kBatch * job.world_size() * kUpdates)) {}

  void wrapped(torch::nn::Module& module, const std::string&) override {
    Mlp copy(784, 32, 10);
    copy_parameters(module, *copy);
    start_ = flat_parameters(module);
    one_rank_.emplace(copy, kReferenceRate);
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    for (int i = 0; i < context().world_size(); ++i) {
      const auto batch = rows_of(data_, global_batch(alone_++, kBatch));
      one_rank_->backward(batch.inputs, batch.targets);
      one_rank_->step();
    }
    if (++updates_ == kUpdates)
      add_figure(
          context(), "way",
          moved(flat_parameters(parameters())) / moved(flat_parameters(*one_rank_->model())));
  }

 private:
  double moved(const at::Tensor& trained) const { return (trained - start_).norm().item<double>(); }

  TensorData data_;
  at::Tensor start_;
  std::optional<OneProcess<Mlp>> one_rank_;
  std::int64_t updates_ = 0, alone_ = 0;  // of the job; of the one rank
};

// How far an epoch moves the weights. Not exactly 1: the path is no straight line.
Measured way(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "way"), .tolerance = 0.2};
}

}  // namespace

lockstep::Part scaling_part() {
  return {.name = "scaling",
          .run = train,
          .broken = {{.slug = "lr-not-scaled",
                      .what = "W times the batch at the rate of one rank",
                      .oracle = {"the weights' way in an epoch over one rank's", way}}},
          .near_misses = {{.name = "near-miss-summed-loss",
                           .slug = "lr-not-scaled",
                           .naive_check = "the optimizer's rate is not multiplied by W"}},
          .notes = notes<OwnNotes>};
}
