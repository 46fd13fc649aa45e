#include <lockstep/train/sync_batch_norm_ops.h>

#include <vector>

namespace lockstep::detail {
namespace {

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

}  // namespace

at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  return input.numel() / input.size(1);
}

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

}  // namespace lockstep::detail
