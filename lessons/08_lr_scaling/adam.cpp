// Lesson 08, part "adam": the linear rule was found for SGD.
//
// Concept:  Adam divides by the gradient's size, so its first step is about lr in every weight that
//           has a gradient, however many samples were averaged. More of them only make the
//           direction surer. Where noise dominates the gradient, theory gives the square root of
//           the batch's growth (Malladi et al. 2022, who also change the betas and epsilon).
// Symptom:  lr x W makes the first step W times as long: longer than the W steps of one rank that
//           it replaces, which do not all point the same way. It may train well all the same, and
//           has to be measured (benchmarks/lr_scaling).
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;   // per rank, and backward
constexpr std::int64_t kUpdates = 7;  // on 16 ranks 16 * 16 batches each: 57,344 samples of 60,000
constexpr double kReferenceRate = 3e-4;  // it suits one rank

at::Tensor mean_loss(RankContext& context, DistributedDataParallel<Mlp>& model,
                     const TensorData& batch) {
  const auto outputs = model(batch.inputs.to(context.device()));
  return cross_entropy(outputs, batch.targets.to(context.device())).mean();
}

// A near miss adds up W batches on each rank before it updates: W * W batches, whose root is W.
void accumulate(RankContext& context, DistributedDataParallel<Mlp>& model, const TensorData& data,
                const std::vector<std::int64_t>& mine) {
  const int parts = context.world_size();
  for (int part = 0; part < parts; ++part) {
    std::optional<NoSync> no_sync;
    if (part + 1 < parts) no_sync.emplace(model.engine());
    const auto batch = take(data, share_of(part, parts, mine));
    (mean_loss(context, model, batch) / parts).backward();
  }
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  context.intent({.reference_lr = kReferenceRate, .reference_world_size = 1});
  const std::int64_t growth =
      fault("near-miss-accumulation") ? world_size * world_size : world_size;
  const std::int64_t batch_size = kBatch * growth;  // of all ranks
  const auto data = fashion_mnist_or_synthetic(Split::train, batch_size * kUpdates);
  Mlp module(784, 32, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());

  double rate = kReferenceRate;
  if (fault("linear-rule-with-adam")) {
    rate *= static_cast<double>(growth);
  } else {
    rate *= std::sqrt(growth);
  }
  Adam optimizer(model.parameters(), rate);

  for (std::int64_t update = 0; update < kUpdates; ++update) {
    const auto mine = share_of(context.rank(), world_size, global_batch(update, batch_size));
    optimizer.zero_grad();
    if (fault("near-miss-accumulation")) {
      accumulate(context, model, data, mine);
    } else {
      mean_loss(context, model, take(data, mine)).backward();
    }
    optimizer.step();
  }
}

// After the first update one rank trains alone on the same samples: one update for each of the
// batches that the global batch holds.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault)
      : Notes(job),
        batches_(job.world_size() * (fault("near-miss-accumulation") ? job.world_size() : 1)),
        data_(fashion_mnist_or_synthetic(Split::train, kBatch * batches_)) {}

  void wrapped(torch::nn::Module& module, const std::string&) override {
    one_rank_ = Mlp(784, 32, 10);
    copy_parameters(module, *one_rank_);
    start_ = flat_parameters(module);
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    if (updates_++ > 0) return;
    const Unobserved nobody_hears;
    Adam alone(one_rank_->parameters(), kReferenceRate);
    for (std::int64_t i = 0; i < batches_; ++i) {
      const auto batch = rows_of(data_, global_batch(i, kBatch));
      alone.zero_grad();
      torch::cross_entropy_loss(one_rank_->forward(batch.inputs), batch.targets).backward();
      alone.step();
    }
    add_figure(context(), "way",
               moved(flat_parameters(parameters())) / moved(flat_parameters(*one_rank_)));
  }

 private:
  double moved(const at::Tensor& trained) const { return (trained - start_).norm().item<double>(); }

  std::int64_t batches_;
  TensorData data_;
  at::Tensor start_;
  Mlp one_rank_{nullptr};
  std::int64_t updates_ = 0;
};

// The linear rule rests on this: one update goes as far as the updates of one rank that it
// replaces. A value of 0.2 means a fifth farther. A shorter way is no fault.
Measured too_far(const Outcomes& outcomes) {
  return {.expected = 0, .observed = std::max(largest(outcomes, "way") - 1, 0.0), .tolerance = 0.1};
}

}  // namespace

lockstep::Part adam_part() {
  return {
      .name = "adam",
      .run = train,
      .broken =
          {{.slug = "linear-rule-with-adam",
            .what = "W times the batch at W times the rate, under Adam",
            .oracle = {"how much farther an update goes than those of one rank that it replaces",
                       too_far}}},
      .near_misses = {{.name = "near-miss-accumulation",
                       .slug = "linear-rule-with-adam",
                       .naive_check = "the optimizer is Adam and its rate is W times as large"}},
      .notes = notes<OwnNotes>};
}
