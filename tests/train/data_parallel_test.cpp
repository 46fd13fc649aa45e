// Gradients over logical CPU devices against the whole batch; the bytes that each way moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/data_parallel.h>
#include <lockstep/train/models.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpus.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

// Small whole numbers, so that every sum and product is exact.
torch::Tensor whole_numbers(at::IntArrayRef sizes) {
  return torch::randint(-3, 4, sizes, torch::kFloat);
}

struct Step {
  Modules replicas;
  std::vector<double> weights;
};

// Forward and backward of the mean loss of each part, on its replica. `samples` is a power of two,
// so that the whole batch's mean divides exactly.
Step step_of(torch::nn::Linear& model, const torch::Tensor& inputs, std::size_t devices) {
  Step step;
  const auto parts = scatter(inputs, cpus(devices));
  step.replicas = replicate(model.ptr(), cpus(parts.size()));
  parallel_apply(parts.size(), [&](std::size_t i) {
    auto& replica = dynamic_cast<torch::nn::LinearImpl&>(*step.replicas[i]);
    replica.forward(parts[i]).pow(2).mean().backward();
  });
  for (const auto& part : parts)
    step.weights.push_back(static_cast<double>(part.size(0)) / static_cast<double>(inputs.size(0)));
  return step;
}

void zero(torch::nn::Linear& model) {
  for (auto& parameter : model->parameters()) parameter.mutable_grad() = torch::Tensor();
}

std::vector<torch::Tensor> gradients(const torch::nn::Module& module) {
  std::vector<torch::Tensor> result;
  for (const auto& parameter : module.parameters()) result.push_back(parameter.grad().clone());
  return result;
}

double largest_difference(const std::vector<torch::Tensor>& a,
                          const std::vector<torch::Tensor>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

class Reduction : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    inputs_ = whole_numbers({13, 6});
    model_ = torch::nn::Linear(6, 4);
    torch::NoGradGuard no_grad;
    for (auto& parameter : model_->parameters()) parameter.copy_(whole_numbers(parameter.sizes()));
  }
  std::vector<torch::Tensor> of_whole_batch() {
    zero(model_);
    model_(inputs_).pow(2).mean().backward();
    const auto result = gradients(*model_);
    zero(model_);
    return result;
  }
  torch::Tensor inputs_;
  torch::nn::Linear model_{nullptr};
};

TEST_P(Reduction, WeightedSumIsTheWholeBatchsGradient) {
  const auto expected = of_whole_batch();
  const auto step = step_of(model_, inputs_, static_cast<std::size_t>(GetParam()));
  reduce_gradients(step.replicas, step.weights);
  EXPECT_LT(largest_difference(gradients(*model_), expected), 1e-4);  // of gradients up to 50
  EXPECT_GT(expected[0].abs().max().item<double>(), 1);
}

TEST_P(Reduction, RingGivesEveryReplicaTheSame) {
  const auto expected = of_whole_batch();
  const auto step = step_of(model_, inputs_, static_cast<std::size_t>(GetParam()));
  ring_all_reduce_gradients(step.replicas, step.weights);
  const auto first = gradients(*step.replicas[0]);
  EXPECT_LT(largest_difference(first, expected), 1e-4);
  for (const auto& replica : step.replicas)
    EXPECT_EQ(largest_difference(gradients(*replica), first), 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, Reduction, ::testing::Values(1, 2, 3, 4, 7));

// Plain means of parts of unequal size are another gradient: the test above can see the difference.
TEST_F(Reduction, EqualWeightsOverUnequalPartsDiffer) {
  const auto expected = of_whole_batch();
  auto step = step_of(model_, inputs_, 4);
  ASSERT_EQ(step.weights.size(), 4U);  // 4, 4, 4, 1 samples
  step.weights = {0.25, 0.25, 0.25, 0.25};
  reduce_gradients(step.replicas, step.weights);
  EXPECT_GT(largest_difference(gradients(*model_), expected), 0.1);
}

// Modules of one 12-element parameter, replica r's gradient all r + 1.
Modules with_gradients(std::size_t count) {
  Modules replicas;
  for (std::size_t r = 0; r < count; ++r) {
    auto module = torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false));
    module->weight.mutable_grad() = torch::full({3, 4}, static_cast<float>(r + 1));
    replicas.push_back(module.ptr());
  }
  return replicas;
}

// What is moved between devices as long as it lives, by what it is.
class Bytes final : public Observer {
 public:
  static std::shared_ptr<Bytes> of(std::size_t devices) {
    auto bytes = std::make_shared<Bytes>();
    bytes->devices_ = devices;
    observe(bytes);
    return bytes;
  }
  std::vector<std::int64_t> sent(const std::string& what) { return of(sent_, what); }
  std::vector<std::int64_t> received(const std::string& what) { return of(received_, what); }
  std::size_t kinds() const { return sent_.size(); }

  void transfer(std::size_t from, std::size_t to, std::int64_t bytes,
                const std::string& what) override {
    of(sent_, what).at(from) += bytes;
    of(received_, what).at(to) += bytes;
  }

 private:
  using ByWhat = std::map<std::string, std::vector<std::int64_t>>;
  std::vector<std::int64_t>& of(ByWhat& moved, const std::string& what) const {
    return moved.try_emplace(what, devices_).first->second;
  }

  std::size_t devices_ = 0;
  ByWhat sent_, received_;
};

TEST(Transfers, ReduceBringsEverythingToTheFirstDevice) {
  const auto bytes = Bytes::of(4);
  const auto replicas = with_gradients(4);
  reduce_gradients(replicas, {1, 1, 1, 1});
  EXPECT_THAT(bytes->sent("gradients"), ElementsAre(0, 48, 48, 48));
  EXPECT_THAT(bytes->received("gradients"), ElementsAre(3 * 48, 0, 0, 0));
  EXPECT_EQ(bytes->kinds(), 1U);
  EXPECT_TRUE(replicas[0]->parameters()[0].grad().equal(torch::full({3, 4}, 10.F)));
  EXPECT_TRUE(replicas[3]->parameters()[0].grad().equal(torch::full({3, 4}, 4.F)));
}

// 2 (n-1)/n of 48 bytes on each device; n = 4 divides the 12 elements.
TEST(Transfers, RingIsEvenlySpread) {
  const auto bytes = Bytes::of(4);
  const auto replicas = with_gradients(4);
  ring_all_reduce_gradients(replicas, {1, 1, 1, 1});
  EXPECT_THAT(bytes->sent("gradients"), ElementsAre(72, 72, 72, 72));
  EXPECT_THAT(bytes->received("gradients"), ElementsAre(72, 72, 72, 72));
  for (const auto& replica : replicas)
    EXPECT_TRUE(replica->parameters()[0].grad().equal(torch::full({3, 4}, 10.F)));
}

// Chunks of unequal size, and more devices than elements: the sum over all is still exact.
TEST(Transfers, RingOfAnySize) {
  for (const std::size_t n : {1, 2, 3, 5, 7, 12, 16}) {
    const auto bytes = Bytes::of(n);
    const auto replicas = with_gradients(n);
    ring_all_reduce_gradients(replicas, std::vector<double>(n, 1));
    const auto expected = static_cast<float>(n * (n + 1) / 2);
    for (const auto& replica : replicas)
      EXPECT_TRUE(replica->parameters()[0].grad().equal(torch::full({3, 4}, expected))) << n;
    std::int64_t sum = 0;
    for (const auto sent : bytes->sent("gradients")) sum += sent;
    EXPECT_EQ(sum, static_cast<std::int64_t>(2 * (n - 1) * 48)) << n;
  }
}

TEST(Transfers, MissingGradientsCountAsZero) {
  for (const bool ring : {false, true}) {
    const auto replicas = with_gradients(3);
    replicas[0]->parameters()[0].mutable_grad() = torch::Tensor();
    ring ? ring_all_reduce_gradients(replicas, {1, 1, 2}) : reduce_gradients(replicas, {1, 1, 2});
    EXPECT_TRUE(replicas[0]->parameters()[0].grad().equal(torch::full({3, 4}, 8.F)));
    for (const auto& replica : replicas) replica->parameters()[0].mutable_grad() = torch::Tensor();
    ring ? ring_all_reduce_gradients(replicas, {1, 1, 2}) : reduce_gradients(replicas, {1, 1, 2});
    EXPECT_FALSE(replicas[0]->parameters()[0].grad().defined());
  }
}

TEST(Transfers, RefusesWhatDoesNotFit) {
  EXPECT_THROW(reduce_gradients(with_gradients(2), {1}), UsageError);
  EXPECT_THROW(ring_all_reduce_gradients({}, {}), UsageError);
  Modules mixed = with_gradients(1);
  mixed.push_back(torch::nn::Linear(4, 2).ptr());
  EXPECT_THROW(reduce_gradients(mixed, {1, 1}), UsageError);
  auto other_shape = with_gradients(1);
  other_shape.push_back(torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)).ptr());
  EXPECT_THROW(ring_all_reduce_gradients(other_shape, {1, 1}), UsageError);
}

// A whole step's figures, Mlp(6, 5, 3) on 5 samples over 4 devices: 3 parts of 2, 2 and 1.
TEST(Transfers, AWholeStep) {
  const auto bytes = Bytes::of(4);
  const auto parts = scatter(torch::ones({5, 6}), cpus(4));
  EXPECT_EQ(bytes->kinds(), 0U);  // from the host's memory
  const Mlp model(6, 5, 3);
  const auto replicas = replicate(model.ptr(), cpus(parts.size()));
  const std::int64_t size = (6 * 5 + 5 + 5 * 3 + 3) * 4;
  EXPECT_THAT(bytes->received("parameters"), ElementsAre(0, size, size, 0));
  std::vector<at::Tensor> outputs;
  for (std::size_t i = 0; i < parts.size(); ++i)
    outputs.push_back(dynamic_cast<MlpImpl&>(*replicas[i]).forward(parts[i]));
  EXPECT_EQ(gather(outputs, c10::kCPU).size(0), 5);
  EXPECT_THAT(bytes->sent("output"), ElementsAre(0, 2 * 3 * 4, 1 * 3 * 4, 0));
  EXPECT_EQ(bytes->kinds(), 2U);
}

}  // namespace
}  // namespace lockstep
