// Lesson 06, part "by-hand": BatchNorm whose batch is that of all ranks, in one file. The last
// rank's batch is short, as the last batch of an epoch is.
//
// Concept:  the mean of a batch is sum / count. Over ranks: sum of the sums / sum of the counts.
//           The variance is a mean too, and autograd finds the gradient if the sum over ranks has
//           one.
// Symptom:  with the mean of the ranks' means, 8 rows of one rank count as much as 32 of another.
//           Without any sum over ranks, each rank normalizes by its own few rows. Neither fails.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/distributed_data_parallel.h>

#include "parts.h"

namespace {

using namespace lockstep;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kBatch = 32;  // per rank, but
constexpr std::int64_t kShort = 8;   // for the last one
constexpr int kSteps = 8;
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
  BatchNormByHandImpl(std::int64_t features, ProcessGroupPtr ranks, Fault form)
      : group(std::move(ranks)), fault(std::move(form)) {
    weight = register_parameter("weight", torch::ones(features));
    bias = register_parameter("bias", torch::zeros(features));
    running_mean = register_buffer("running_mean", torch::zeros(features));
    running_var = register_buffer("running_var", torch::ones(features));
  }

  at::Tensor mean_over_batch(const at::Tensor& rows) {
    if (fault("local-batch-norm")) {  // PITFALL local-batch-norm
      return rows.mean(0);            // As torch::nn::BatchNorm: of this rank's rows.
    }
    // A near miss: where all ranks have as many rows, the mean of means is the mean.
    if (fault("unequal-counts-in-sync") ||  // PITFALL unequal-counts-in-sync
        fault("near-miss-equal-counts")) {
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
    mean = mean_over_batch(rows);
    const auto variance = mean_over_batch((rows - mean).square());
    {
      const torch::NoGradGuard no_grad;
      own_mean = rows.mean(0);
      running_mean.lerp_(mean, kMomentum);
      running_var.lerp_(variance * (global_rows / (global_rows - 1)), kMomentum);  // unbiased
    }
    return (rows - mean) * (variance + kEps).rsqrt() * weight + bias;
  }

  ProcessGroupPtr group;
  Fault fault;
  double global_rows = 0;  // of all ranks
  at::Tensor weight, bias, running_mean, running_var;
  at::Tensor own_mean, mean;  // of the last batch: this rank's own, and the one it used
};
TORCH_MODULE(BatchNormByHand);

void train(RankContext& context, const Fault& fault) {
  const bool last = context.rank() == context.world_size() - 1;
  const std::int64_t tail = fault("near-miss-equal-counts") ? kBatch : kShort;
  const std::int64_t own = last ? tail : kBatch;
  const std::int64_t global = kBatch * (context.world_size() - 1) + tail;
  const auto data = fashion_mnist_or_synthetic(Split::train, global * kSteps);

  BatchNormByHand norm(64, context.group(), fault);
  torch::nn::Sequential net(torch::nn::Linear(784, 64), norm, torch::nn::Tanh(),
                            torch::nn::Linear(64, 10));
  net->to(context.device());
  norm->global_rows = static_cast<double>(global);
  auto reference = batch_norm_mlp();  // one process, torch's BatchNorm, the global batch
  // A near miss: frozen, as in fine-tuning, it goes by its running statistics, and no batch counts.
  if (fault("near-miss-frozen-statistics")) {
    norm->eval();
    reference->ptr(1)->eval();
  }
  auto& probes = context.probes();
  probes.intent({.global_batch = global, .loss_reduction = "mean"});
  probes.attach(*net);
  DistributedDataParallel<torch::nn::Sequential> model(net, context.group());
  probes.engine("distributed_data_parallel");
  copy_parameters(*net, *reference);
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.05);
  probes.start();
  Mean loss_of_epoch, loss_of_reference;

  for (int step = 0; step < kSteps; ++step) {
    auto everyone = all_ids(global);
    for (auto& id : everyone) id += step * global;
    const auto first = everyone.begin() + context.rank() * kBatch;
    const std::vector<std::int64_t> mine(first, first + own);
    probes.samples("train", mine);
    const auto batch = take(data, mine);
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    probes.forward(net->is_training());
    if (norm->is_training()) probes.average("batch mean", norm->own_mean, own, norm->mean);
    const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                at::Reduction::None);
    // DDP takes the mean over ranks; with this factor that is the mean over all samples.
    const auto loss =
        each.sum() * (static_cast<double>(context.world_size()) / static_cast<double>(global));
    probes.loss(loss, each);
    loss.backward();

    const auto whole = take(data, everyone);
    reference_optimizer.zero_grad();
    const auto reference_loss =
        torch::cross_entropy_loss(reference->forward(whole.inputs), whole.targets);
    reference_loss.backward();
    loss_of_reference.add(reference_loss);
    if (step == 0)
      add_figure(context, "gradient_distance",
                 relative_distance(flat_gradients(*net), flat_gradients(*reference)));
    reference_optimizer.step();
    probes.gradients_ready();
    optimizer.step();
    probes.updated(optimizer);
    loss_of_epoch.add(each);
  }
  const auto& plain = *reference->ptr(1)->as<torch::nn::BatchNorm1dImpl>();
  add_figure(context, "variance_distance",
             relative_distance(norm->running_var.cpu(), plain.running_var));
  context.outcome().losses.push_back(loss_of_epoch.value());
  context.outcome().reference_losses.push_back(loss_of_reference.value());
}

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
                       .naive_check = "means are averaged over ranks without their counts"}}};
}
