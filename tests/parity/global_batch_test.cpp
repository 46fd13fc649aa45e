// Data-parallel training is training on the global batch: 1 process on a batch of 48 against 2, 3,
// 4 and 8 ranks with 48 / W samples each, 50 steps of SGD.
//
// The bound. Both compute the mean of the same 48 gradients, and differ only in the order of its
// sums: over the samples within a matrix product, then over ranks. A float32 sum of about 50 terms
// is off by a few units in the last place (6e-8), and a descent that contracts does not amplify
// that: 50 steps leave some 2e-7, relative, as measured (8e-16 in float64, where the unit is
// 1.1e-16). 2e-6 and 1e-14 are about ten times as much. A fault is far outside: a sum in place of
// the mean shows in the second digit.
#include <gtest/gtest.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <cmath>

#include "../support/thread_ranks.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kGlobalBatch = 48;
constexpr int kSteps = 50;

Mlp make_model(torch::Dtype dtype) {
  return seeded(11, [&] {
    auto net = Mlp(784, 64, 10);
    net->to(dtype);
    return net;
  });
}

// Global batch `step`, or the part of rank `rank` of `ranks`.
TensorData batch_of(const TensorData& data, int step, int rank, int ranks) {
  const std::int64_t size = kGlobalBatch / ranks;
  const std::int64_t first = (step * kGlobalBatch + rank * size) % data.size();
  return {data.inputs.slice(0, first, first + size), data.targets.slice(0, first, first + size)};
}

// forward(inputs) gives logits; after_backward changes the gradients before the step.
std::vector<double> train(
    const TensorData& data, Mlp net, int rank, int ranks,
    const std::function<at::Tensor(const at::Tensor&)>& forward,
    const std::function<void()>& after_backward = [] {}) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = batch_of(data, step, rank, ranks);
    net->zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(forward(batch.inputs), batch.targets);
    loss.backward();
    after_backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

std::vector<double> one_process(const TensorData& data, torch::Dtype dtype) {
  auto net = make_model(dtype);
  return train(data, net, 0, 1, [&](const at::Tensor& inputs) { return net->forward(inputs); });
}

// The mean over ranks of their losses: the loss of the global batch, since parts have one size.
std::vector<double> many_ranks(const TensorData& data, torch::Dtype dtype, int ranks,
                               double gradient_factor = 1) {
  std::vector<double> mean(kSteps);
  std::mutex mutex;
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    auto net = make_model(dtype);
    auto model = DistributedDataParallel(net, group);
    const auto losses = train(
        data, net, group->getRank(), ranks, [&](const at::Tensor& inputs) { return model(inputs); },
        [&] {
          if (gradient_factor == 1) return;
          for (const auto& parameter : net->parameters())
            parameter.mutable_grad().mul_(gradient_factor);
        });
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t i = 0; i < losses.size(); ++i) mean[i] += losses[i] / ranks;
  });
  return mean;
}

double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(a[i]));
  return largest;
}

TensorData data_of(torch::Dtype dtype) {
  auto data = synthetic(960, 784, 10, 5);
  data.inputs = data.inputs.to(dtype);
  return data;
}

class GlobalBatch : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GlobalBatch, ::testing::Values(2, 3, 4, 8),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(GlobalBatch, LossesAreThoseOfOneProcessToRounding) {
  for (const auto& [dtype, bound] : {std::pair{torch::kFloat32, 2e-6}, {torch::kFloat64, 1e-14}}) {
    const auto data = data_of(dtype);
    const auto alone = one_process(data, dtype);
    const double difference =
        largest_relative_difference(alone, many_ranks(data, dtype, GetParam()));
    RecordProperty(dtype == torch::kFloat32 ? "float32" : "float64",
                   std::to_string(difference * 1e9) + "e-9");
    std::printf("%s on %d ranks: losses differ by at most %.2g (bound %.0g)\n",
                c10::toString(dtype), GetParam(), difference, bound);
    EXPECT_LT(difference, bound);
    EXPECT_LT(alone.back(),
              0.7 * alone.front());  // it learned something: the losses are not all the same
  }
}

TEST(GlobalBatchOracle, ASumInPlaceOfTheMeanIsFarOutside) {
  const auto data = data_of(torch::kFloat32);
  const auto alone = one_process(data, torch::kFloat32);
  EXPECT_GT(largest_relative_difference(alone, many_ranks(data, torch::kFloat32, 2, 2.0)), 1e-2);
}

}  // namespace
}  // namespace lockstep::test
