// scatter, replicate, parallel_apply and gather, each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/data_parallel.h>
#include <lockstep/train/models.h>

#include <latch>
#include <set>
#include <thread>

#include "cpus.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int64_t> sizes(const std::vector<at::Tensor>& parts) {
  std::vector<std::int64_t> result;
  for (const auto& part : parts) result.push_back(part.size(0));
  return result;
}

TEST(Scatter, CutsAsChunkDoes) {
  const auto batch = torch::arange(10).view({5, 2});
  EXPECT_THAT(sizes(scatter(batch, cpus(4))), ElementsAre(2, 2, 1));
  EXPECT_THAT(sizes(scatter(batch, cpus(2))), ElementsAre(3, 2));
  EXPECT_THAT(sizes(scatter(batch, cpus(1))), ElementsAre(5));
  EXPECT_THAT(sizes(scatter(batch, cpus(8))), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_TRUE(torch::cat(scatter(batch, cpus(4))).equal(batch));
}

TEST(Scatter, OtherDevicesHaveTheirOwnMemory) {
  auto batch = torch::zeros({4, 2});
  const auto parts = scatter(batch, cpus(2));
  batch.fill_(1);
  EXPECT_EQ(parts[1].sum().item<float>(), 0);
}

TEST(Scatter, RefusesNoDevicesAndScalars) {
  EXPECT_THROW(scatter(torch::zeros({4}), {}), UsageError);
  EXPECT_THROW(scatter(torch::zeros({}), cpus(2)), UsageError);
}

TEST(Replicate, FirstIsTheModuleAndCopiesAreTheirOwn) {
  ConvNet model(10);
  model->forward(torch::randn({4, 784}));  // moves the running statistics
  model->eval();
  model->conv1->weight.set_requires_grad(false);
  const auto replicas = replicate(model.ptr(), cpus(3));
  ASSERT_EQ(replicas.size(), 3U);
  EXPECT_EQ(replicas[0], model.ptr());
  const auto& copy = dynamic_cast<ConvNetImpl&>(*replicas[2]);
  EXPECT_FALSE(copy.is_training());
  EXPECT_FALSE(copy.bn1->is_training());
  EXPECT_FALSE(copy.conv1->weight.requires_grad());
  EXPECT_TRUE(copy.conv2->weight.requires_grad());
  for (const auto& item : model->named_parameters()) {
    const auto& other = *copy.named_parameters().find(item.key());
    EXPECT_TRUE(other.equal(item.value())) << item.key();
    EXPECT_NE(other.data_ptr(), item.value().data_ptr()) << item.key();
    EXPECT_TRUE(other.is_leaf());
  }
  for (const auto& item : model->named_buffers())
    EXPECT_TRUE(copy.named_buffers().find(item.key())->equal(item.value())) << item.key();
}

TEST(Replicate, LeavesTheGlobalGenerator) {
  const Mlp model(3, 2, 1);
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  replicate(model.ptr(), cpus(3));
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

struct NotCloneable : torch::nn::Module {};

TEST(Replicate, RefusesAModuleThatCannotBeCloned) {
  const auto module = std::make_shared<NotCloneable>();
  EXPECT_EQ(replicate(module, cpus(1)).size(), 1U);
  try {
    replicate(module, cpus(2));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("NotCloneable"));
    EXPECT_THAT(error.what(), HasSubstr("torch::nn::Cloneable"));
  }
}

// All are in flight at once, each in a thread of its own: the latch opens only then.
TEST(ParallelApply, RunsSideBySide) {
  std::latch all(4);
  std::vector<std::thread::id> threads(4);
  parallel_apply(4, [&](std::size_t i) {
    threads[i] = std::this_thread::get_id();
    all.arrive_and_wait();
  });
  EXPECT_EQ(std::set<std::thread::id>(threads.begin(), threads.end()).size(), 4U);
  parallel_apply(0, [](std::size_t) { FAIL(); });
}

TEST(ParallelApply, CarriesTheCallersModes) {
  std::vector<int> grad(2), inference(2);
  const auto look = [&](std::size_t i) {
    grad[i] = torch::GradMode::is_enabled();
    inference[i] = c10::InferenceMode::is_enabled();
  };
  parallel_apply(2, look);
  EXPECT_THAT(grad, ElementsAre(1, 1));
  {
    torch::NoGradGuard no_grad;
    parallel_apply(2, look);
    EXPECT_THAT(grad, ElementsAre(0, 0));
    EXPECT_THAT(inference, ElementsAre(0, 0));
  }
  c10::InferenceMode mode;
  parallel_apply(2, look);
  EXPECT_THAT(inference, ElementsAre(1, 1));
}

// Worker 2 throws first in time, worker 1 after it: the lowest counts, and all have ended by then.
TEST(ParallelApply, RethrowsAfterAllHaveEnded) {
  std::latch second_threw(1);
  std::atomic<int> ended = 0;
  try {
    parallel_apply(4, [&](std::size_t i) {
      if (i == 2) {
        second_threw.count_down();
        throw std::runtime_error("from 2");
      }
      second_threw.wait();
      if (i == 1) throw UsageError("from 1");
      ++ended;
    });
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "from 1");
  }
  EXPECT_EQ(ended, 2);
}

TEST(Gather, ConcatenatesAndPassesTheGradientBack) {
  const auto a = torch::ones({2, 3}, torch::requires_grad());
  const auto b = torch::ones({1, 3}, torch::requires_grad());
  const auto all = gather({a, b}, c10::kCPU);
  EXPECT_EQ(all.sizes(), (std::vector<std::int64_t>{3, 3}));
  (all * torch::arange(9).view({3, 3})).sum().backward();
  EXPECT_TRUE(b.grad().equal(torch::tensor({{6.F, 7.F, 8.F}})));
  EXPECT_THROW(gather({}, c10::kCPU), UsageError);
}

}  // namespace
}  // namespace lockstep
