// The arithmetic of SyncBatchNorm, without communication: statistics of a batch, merging those of
// several, and the gradient. C = channels, at dimension 1 of the input; statistics are [C], in the
// input's dtype or, for half precision, float32. On CUDA these are torch's own batch_norm_*
// kernels, which exist there only. Internal to train.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace lockstep::detail {

at::ScalarType statistics_dtype(const at::Tensor& input);
std::int64_t values_per_channel(const at::Tensor& input);

// [mean, 1 / sqrt(biased variance + eps), count] as one vector of 2C + 1; zeros for an empty input.
at::Tensor local_statistics(const at::Tensor& input, double eps);

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
                                  const RunningStatistics& running);

// (x - mean) invstd weight + bias. Weight and bias may be undefined.
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const GlobalStatistics& statistics, double eps);

// Of this rank's samples: [sum dy, sum dy (x - mean)], 2C; zeros for an empty input.
at::Tensor gradient_sums(const at::Tensor& output_gradient, const at::Tensor& input,
                         const GlobalStatistics& statistics);

// The input's gradient, from `sums` over all ranks and their counts [R], of N samples together:
// (dy - sum dy / N - (x - mean) invstd^2 sum(dy (x - mean)) / N) invstd weight.
at::Tensor input_gradient(const at::Tensor& output_gradient, const at::Tensor& input,
                          const at::Tensor& weight, const GlobalStatistics& statistics,
                          const at::Tensor& sums, const at::Tensor& counts);

}  // namespace lockstep::detail
