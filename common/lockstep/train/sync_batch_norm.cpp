#include <lockstep/base/error.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/observer.h>
#include <lockstep/observe/own_operations.h>
#include <lockstep/train/sync_batch_norm.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- the arithmetic, without communication ----

// Statistics of a batch, merging those of several, and the gradient. C = channels, at dimension 1 of
// the input; statistics are [C], in the input's dtype or, for half precision, float32. On CUDA these
// are torch's own batch_norm_* kernels, which exist there only.

// All dimensions but the channels'.
std::vector<std::int64_t> batch_dimensions(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < input.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

// [C] as [1, C, 1, ...], in the shape of `input`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.size(0);
  return values.reshape(shape);
}

at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  return input.numel() / input.size(1);
}

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.to(statistics_dtype(tensor));
}

// The kernels read plain or channels-last memory.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.contiguous(tensor.suggest_memory_format());
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// [mean, 1 / sqrt(biased variance + eps), count] as one vector of 2C + 1; zeros for an empty input.
at::Tensor local_statistics(const at::Tensor& input, double eps) {
  const auto options = input.options().dtype(statistics_dtype(input));
  if (input.numel() == 0) return at::zeros({2 * input.size(1) + 1}, options);
  const auto count = at::full({1}, values_per_channel(input), options);
  if (input.is_cuda()) {
    const auto [mean, invstd] = at::batch_norm_stats(dense(input), eps);
    return at::cat({mean, invstd, count});
  }
  const auto [variance, mean] =
      at::var_mean(wide(input), batch_dimensions(input), /*correction=*/0);
  return at::cat({mean, (variance + eps).rsqrt(), count});
}

// Each rank's mean and invstd [R, C] and count [R], every count at least 1.
struct RankStatistics {
  at::Tensor mean, invstd, count;
};
struct GlobalStatistics {
  at::Tensor mean, invstd;
};
// What the running statistics become; undefined where there are none.
struct RunningStatistics {
  at::Tensor mean, variance;
  double momentum = 0;
};
// Merged in rank order, so that all ranks get the same bits (Chan et al.'s parallel variance). The
// running variance takes the unbiased one.
GlobalStatistics merge_statistics(const at::Tensor& input, const RankStatistics& ranks, double eps,
                                  const RunningStatistics& running) {
  if (input.is_cuda()) {
    const auto counts =
        running.mean.defined() ? ranks.count.to(running.mean.scalar_type()) : ranks.count;
    const auto [mean, invstd] = at::batch_norm_gather_stats_with_counts(
        dense(input), ranks.mean, ranks.invstd, optional(running.mean), optional(running.variance),
        running.momentum, eps, counts);
    return {mean, invstd};
  }
  auto mean = at::zeros_like(ranks.mean[0]);
  auto squares = at::zeros_like(mean);  // sum of (x - mean)^2
  double n = 0;
  for (std::int64_t rank = 0; rank < ranks.count.size(0); ++rank) {
    const double count = ranks.count[rank].item<double>(), both = n + count;
    const auto apart = ranks.mean[rank] - mean;
    squares += (ranks.invstd[rank].pow(-2) - eps) * count + apart.square() * (n * count / both);
    mean = mean * (n / both) + ranks.mean[rank] * (count / both);
    n = both;
  }
  if (running.mean.defined()) {
    running.mean.mul_(1 - running.momentum).add_(mean, running.momentum);
    running.variance.mul_(1 - running.momentum).add_(squares / (n - 1), running.momentum);
  }
  return {mean, (squares / n + eps).rsqrt()};
}

// (x - mean) invstd weight + bias. Weight and bias may be undefined.
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const GlobalStatistics& statistics, double eps) {
  if (input.numel() == 0) return at::empty_like(input);
  if (input.is_cuda())
    return at::batch_norm_elemt(dense(input), optional(weight), optional(bias), statistics.mean,
                                statistics.invstd, eps);
  const auto scale = weight.defined() ? statistics.invstd * weight : statistics.invstd;
  auto output = (input - per_channel(statistics.mean, input)) * per_channel(scale, input);
  if (bias.defined()) output += per_channel(bias, input);
  return output.to(input.scalar_type());
}

// Of this rank's samples: [sum dy, sum dy (x - mean)], 2C; zeros for an empty input.
at::Tensor gradient_sums(const at::Tensor& output_gradient, const at::Tensor& input,
                         const GlobalStatistics& statistics) {
  if (input.is_cuda() && input.numel() > 0) {
    const auto [dy, dy_xmu, weight_gradient, bias_gradient] = at::batch_norm_backward_reduce(
        dense(output_gradient), dense(input), statistics.mean, statistics.invstd,
        /*weight=*/std::nullopt, /*input_g=*/true, /*weight_g=*/false, /*bias_g=*/false);
    return at::cat({dy, dy_xmu});
  }
  const auto dimensions = batch_dimensions(input);
  const auto dy = wide(output_gradient);
  const auto dy_xmu = dy * (input - per_channel(statistics.mean, input));
  return at::cat({dy.sum(dimensions), dy_xmu.sum(dimensions)});
}

// The input's gradient, from `sums` over all ranks and their counts [R], of N samples together:
// (dy - sum dy / N - (x - mean) invstd^2 sum(dy (x - mean)) / N) invstd weight.
at::Tensor input_gradient(const at::Tensor& output_gradient, const at::Tensor& input,
                          const at::Tensor& weight, const GlobalStatistics& statistics,
                          const at::Tensor& sums, const at::Tensor& counts) {
  if (input.numel() == 0) return at::zeros_like(input);
  const auto both = sums.chunk(2);
  if (input.is_cuda()) {
    const auto factor = weight.defined() ? weight.to(statistics.mean.scalar_type()) : weight;
    return at::batch_norm_backward_elemt(dense(output_gradient), dense(input), statistics.mean,
                                         statistics.invstd, optional(factor), both[0], both[1],
                                         counts.to(at::kInt));
  }
  const double n = counts.sum().item<double>();
  const auto scale = weight.defined() ? statistics.invstd * weight : statistics.invstd;
  const auto slope = statistics.invstd.square() * both[1] / n;
  const auto gradient =
      (wide(output_gradient) - per_channel(both[0] / n, input) -
       (input - per_channel(statistics.mean, input)) * per_channel(slope, input)) *
      per_channel(scale, input);
  return gradient.to(input.scalar_type());
}

// ---- the layer ----

// Every rank's part, without those that have no samples. Collective.
RankStatistics gather(c10d::ProcessGroup& group, const at::Tensor& local) {
  const auto all = at::stack(all_gather(group, local));
  const auto channels = (local.size(0) - 1) / 2;
  const auto filled = all.index({all.select(1, 2 * channels) >= 1});
  return {filled.narrow(1, 0, channels).contiguous(),
          filled.narrow(1, channels, channels).contiguous(),
          filled.select(1, 2 * channels).contiguous()};
}

// Normalizes by statistics of all ranks. They depend on every rank's input, so the backward adds up
// two sums over the ranks.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  // Weight and bias as optionals: a Function takes no undefined tensors.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                            const at::Tensor& invstd, const at::Tensor& counts, double eps,
                            const ProcessGroupPtr& group) {
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, invstd, counts});
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    return normalize(input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()),
                     {mean, invstd}, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // The engine leaves gradients switched on where create_graph was asked for.
    if (torch::GradMode::is_enabled())
      throw Error(
          "SyncBatchNorm: its backward communicates and cannot be differentiated; call backward or "
          "grad without create_graph");
    const auto saved = context->get_saved_variables();
    const auto &input = saved[0], &weight = saved[1], &counts = saved[4];
    const GlobalStatistics statistics{saved[2], saved[3]};
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(
        context->saved_data["group"].toCapsule());

    variable_list result(8);
    auto sums = gradient_sums(gradients[0], input, statistics);
    const auto channels = input.size(1);
    // Left local: whoever reduces the other parameters' gradients reduces these.
    if (weight.defined()) {
      result[1] = sums.narrow(0, channels, channels) * statistics.invstd;
      result[2] = sums.narrow(0, 0, channels).clone();
    }
    if (context->needs_input_grad(0)) {
      all_reduce(*group, sums);
      result[0] = input_gradient(gradients[0], input, weight, statistics, sums, counts);
    }
    return result;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm_options,
                                     ProcessGroupPtr group)
    : options(batch_norm_options), group_(std::move(group)) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& batch_norm_options,
                                     ProcessGroupPtr group, const BatchNormTensors& tensors)
    : options(batch_norm_options), group_(std::move(group)) {
  adopt(tensors);
}

void SyncBatchNormImpl::reset() {
  const auto channels = options.num_features();
  BatchNormTensors tensors;
  if (options.affine()) {
    tensors.weight = torch::ones(channels).requires_grad_();
    tensors.bias = torch::zeros(channels).requires_grad_();
  }
  if (options.track_running_stats()) {
    tensors.running_mean = at::zeros(channels);
    tensors.running_var = at::ones(channels);
    tensors.num_batches_tracked = at::zeros({}, at::kLong);
  }
  adopt(tensors);
}

void SyncBatchNormImpl::adopt(const BatchNormTensors& tensors) {
  // register_parameter sets requires_grad; a frozen parameter must stay frozen.
  const auto trained = [](const at::Tensor& parameter) {
    return parameter.defined() && parameter.requires_grad();
  };
  weight = register_parameter("weight", tensors.weight, trained(tensors.weight));
  bias = register_parameter("bias", tensors.bias, trained(tensors.bias));
  running_mean = register_buffer("running_mean", tensors.running_mean);
  running_var = register_buffer("running_var", tensors.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

// A rank that fails here fails before its collective; shapes that differ in C would hang the job.
void SyncBatchNormImpl::check(const at::Tensor& input) const {
  if (input.dim() < 2)
    throw UsageError("SyncBatchNorm: the input needs at least 2 dimensions, [N, C, ...]; it has " +
                     std::to_string(input.dim()));
  if (input.size(1) != options.num_features() || input.size(1) == 0)
    throw UsageError("SyncBatchNorm: the layer is made for " +
                     std::to_string(options.num_features()) + " channels; the input has " +
                     std::to_string(input.size(1)) + " in dimension 1 (and 0 are too few)");
}

// Counts this batch; the weight its statistics get in the running ones.
double SyncBatchNormImpl::count_batch() {
  if (!is_training() || !num_batches_tracked.defined()) return options.momentum().value_or(0.0);
  num_batches_tracked += 1;
  return options.momentum().value_or(1.0 / num_batches_tracked.item<double>());
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  const OwnOperations own;  // one process with all ranks' samples goes by the same statistics
  const double momentum = count_batch();
  if (!is_training() || !group_ || group_->getSize() == 1)
    return torch::nn::functional::detail::batch_norm(
        input, running_mean, running_var, weight, bias,
        is_training() || !options.track_running_stats(), momentum, options.eps());

  RankStatistics ranks;
  GlobalStatistics global;
  {
    const torch::NoGradGuard no_grad;  // Normalize's backward knows what depends on what
    const auto local = local_statistics(input, options.eps());
    ranks = gather(*group_, local);
    const double values = ranks.count.sum().item<double>();
    if (values == 1)
      throw UsageError(
          "SyncBatchNorm: expected more than 1 value per channel when training; all ranks together "
          "have 1");
    if (values == 0) return input.clone();  // as torch's: nothing to normalize or to learn from
    global = merge_statistics(input, ranks, options.eps(), {running_mean, running_var, momentum});
    tell([&](Observer& to) {
      const auto channels = input.size(1);
      to.average("SyncBatchNorm", local.narrow(0, 0, channels), input.numel() / channels,
                 global.mean);
    });
  }
  return Normalize::apply(input, std::optional(weight), std::optional(bias), global.mean,
                          global.invstd, ranks.count, options.eps(), group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats()
         << ", ranks=" << (group_ ? group_->getSize() : 1) << ")";
}

}  // namespace lockstep
