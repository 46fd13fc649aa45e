// Lesson 06, part "by-hand": BatchNorm whose batch is that of all ranks, in one file. The last
// rank's batch is short, as the last batch of an epoch is.
//
// Concept:  the mean of a batch is sum / count. Over ranks: sum of the sums / sum of the counts.
//           The variance is a mean too, and autograd finds the gradient if the sum over ranks has
//           one.
// Symptom:  with the mean of the ranks' means, 8 rows of one rank count as much as 32 of another.
//           Without any sum over ranks, each rank normalizes by its own few rows. Neither fails.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "parts.h"

namespace {

using namespace lockstep;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kBatch = 32;  // per rank, but
constexpr std::int64_t kShort = 8;   // for the last one
constexpr int kSteps = 8;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.1, kEps = 1e-5;  // BatchNorm's defaults

// The sum over all ranks. Every rank's loss depends on it, so its gradient is the sum of theirs.
class SumOverRanks : public torch::autograd::Function<SumOverRanks> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values,
                            const ProcessGroupPtr& group) {
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    auto sum = values.clone();
    all_reduce(*group, sum);
    return sum;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(
        context->saved_data["group"].toCapsule());
    auto sum = gradients[0].clone();
    all_reduce(*group, sum);
    return {sum, {}};
  }
};

struct BatchNormByHandImpl : torch::nn::Module {
  BatchNormByHandImpl(std::int64_t features, ProcessGroupPtr ranks, std::int64_t rows,
                      Fault variant)
      : group(std::move(ranks)), global_rows(static_cast<double>(rows)), fault(std::move(variant)) {
    weight = register_parameter("weight", torch::ones(features));
    bias = register_parameter("bias", torch::zeros(features));
    running_mean = register_buffer("running_mean", torch::zeros(features));
    running_var = register_buffer("running_var", torch::ones(features));
  }

  at::Tensor mean_over_batch(const at::Tensor& rows) {
    if (fault("local-batch-norm")) {
      return rows.mean(0);  // As torch::nn::BatchNorm: of this rank's rows.
    } else if (fault("unequal-counts-in-sync") || fault("near-miss-equal-counts")) {
      return SumOverRanks::apply(rows.mean(0), group) / group->getSize();
    } else {
      const auto count = at::full({1}, rows.size(0), rows.options());
      return SumOverRanks::apply(rows.sum(0), group) / SumOverRanks::apply(count, group);
    }
  }

  at::Tensor forward(const at::Tensor& rows) {
    if (!is_training())
      return torch::batch_norm(rows, weight, bias, running_mean, running_var, false, 0, kEps,
                               false);
    const auto mean = mean_over_batch(rows);
    const auto variance = mean_over_batch((rows - mean).square());
    {
      const torch::NoGradGuard no_grad;
      running_mean.lerp_(mean, kMomentum);
      running_var.lerp_(variance * (global_rows / (global_rows - 1)), kMomentum);  // unbiased
      if (on_mean) on_mean(rows.mean(0), rows.size(0), mean);
    }
    return (rows - mean) * (variance + kEps).rsqrt() * weight + bias;
  }

  ProcessGroupPtr group;
  double global_rows;  // of all ranks
  Fault fault;
  at::Tensor weight, bias, running_mean, running_var;
  // Is told of each batch: the mean of this rank's rows, their number, and the mean that was used.
  std::function<void(const at::Tensor& own, std::int64_t rows, const at::Tensor& used)> on_mean;
};
TORCH_MODULE(BatchNormByHand);

// The recorder cannot see which means a layer of your own takes, so the layer tells it.
void record_means(RankContext& context, BatchNormByHandImpl& norm) {
  norm.on_mean = [&context](const at::Tensor& own, std::int64_t rows, const at::Tensor& used) {
    context.told().average("batch mean", own, rows, used);
  };
}

// The rows of one step, over all ranks.
std::int64_t rows_of_all(const RankContext& context, const Fault& fault) {
  // A near miss: where all ranks have as many rows, the mean of means is the mean.
  const auto of_last = fault("near-miss-equal-counts") ? kBatch : kShort;
  return kBatch * (context.world_size() - 1) + of_last;
}

// Each rank takes kBatch rows, and the last one what is left.
std::vector<std::int64_t> rows_of_rank(int rank, const std::vector<std::int64_t>& everyone) {
  const auto first = everyone.begin() + rank * kBatch;
  return {first, first + std::min<std::ptrdiff_t>(kBatch, everyone.end() - first)};
}

void train(RankContext& context, const Fault& fault) {
  const auto global = rows_of_all(context, fault);
  context.intent({.global_batch = global, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, global * kSteps);

  BatchNormByHand norm(64, context.group(), global, fault);
  record_means(context, *norm);
  torch::nn::Sequential net(torch::nn::Linear(784, 64), norm, torch::nn::Tanh(),
                            torch::nn::Linear(64, 10));
  net->to(context.device());
  // A near miss: frozen, as in fine-tuning, it goes by its running statistics, and no batch counts.
  if (fault("near-miss-frozen-statistics")) norm->eval();
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group());
  SGD optimizer(net->parameters(), kLearningRate);
  // DDP takes the mean over ranks; with this factor that is the mean over all samples.
  const double factor = static_cast<double>(context.world_size()) / static_cast<double>(global);

  for (int step = 0; step < kSteps; ++step) {
    const auto mine = rows_of_rank(context.rank(), global_batch(step, global));
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    const auto each = cross_entropy(outputs, batch.targets.to(context.device()));
    const auto loss = each.sum() * factor;
    loss.backward();
    optimizer.step();
  }
}

// Beside it one process trains on the global batch, with torch's BatchNorm.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault)
      : Notes(job),
        frozen_(fault("near-miss-frozen-statistics")),
        global_rows_(rows_of_all(job, fault)),
        data_(fashion_mnist_or_synthetic(Split::train, global_rows_ * kSteps)) {}

  void wrapped(torch::nn::Module& module, const std::string&) override {
    running_var_ = module.named_buffers()["1.running_var"];
  }
  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    Notes::optimizer_made(optimizer);
    one_process_.emplace(batch_norm_mlp(parameters()), kLearningRate);
    if (frozen_) norm().eval();
  }
  void update_begins(torch::optim::Optimizer&) override {
    const auto batch = rows_of(data_, global_batch(step_, global_rows_));
    one_process_->backward(batch.inputs, batch.targets);
    if (step_++ == 0)
      add_figure(
          context(), "gradient_distance",
          relative_distance(flat_gradients(parameters()), flat_gradients(*one_process_->model())));
    one_process_->step();
  }
  void finish() override {
    Notes::finish();
    if (!one_process_) return;  // it has failed before that
    add_figure(context(), "variance_distance",
               relative_distance(running_var_.cpu(), norm().running_var));
    context().outcome().reference_losses.push_back(one_process_->mean_loss());
  }

 private:
  torch::nn::BatchNorm1dImpl& norm() {
    return *one_process_->model()->ptr(1)->as<torch::nn::BatchNorm1dImpl>();
  }

  bool frozen_;
  std::int64_t global_rows_;
  TensorData data_;
  std::optional<OneProcess<torch::nn::Sequential>> one_process_;
  at::Tensor running_var_;  // of the layer by hand
  int step_ = 0;
};

// float32 in another order of summation: the correct variant is 5e-7 away, in both.
Measured gradient_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "gradient_distance"), .tolerance = 1e-4};
}

Measured variance_distance(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "variance_distance"), .tolerance = 1e-5};
}

}  // namespace

lockstep::Part by_hand_part() {
  return {
      .name = "by-hand",
      .run = train,
      .broken = {{.slug = "local-batch-norm",
                  .what = "each rank normalizes by statistics of its own rows",
                  .oracle = {"first gradient, distance from one process", gradient_distance}},
                 {.slug = "unequal-counts-in-sync",
                  .what = "the mean of the ranks' means, whose counts differ",
                  .oracle = {"running variance, distance from one process", variance_distance}}},
      .near_misses = {{.name = "near-miss-frozen-statistics",
                       .slug = "local-batch-norm",
                       .naive_check = "the model has a BatchNorm that talks to nobody"},
                      {.name = "near-miss-equal-counts",
                       .slug = "unequal-counts-in-sync",
                       .naive_check = "means are averaged over ranks without their counts"}},
      .notes = notes<OwnNotes>};
}
