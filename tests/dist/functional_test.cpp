// Collectives with a gradient, on 1 to 4 ranks: values and gradients are small whole numbers, so that
// sums are exact.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/functional.h>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

class Functional : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Functional, ::testing::Values(1, 2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

at::Tensor values_of(int rank) {
  return torch::arange(1, 7, torch::kFloat32).reshape({2, 3}) + 10 * rank;
}

int triangle(int n) {
  return n * (n + 1) / 2;
}

// Rank r's loss weighs what came from rank s with (r + 1)(s + 1).
at::Tensor weighed(const std::vector<at::Tensor>& gathered, int rank) {
  at::Tensor loss = torch::zeros({});
  for (std::size_t s = 0; s < gathered.size(); ++s)
    loss = loss + (gathered[s] * gathered[s]).sum() * static_cast<double>((rank + 1)) * (s + 1.0);
  return loss;
}

TEST_P(Functional, AllGatherGivesEachRankTheGradientsOfAllLosses) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    const auto own = values_of(rank).requires_grad_();
    const auto gathered = functional::all_gather(group, own);
    ASSERT_EQ(gathered.size(), static_cast<std::size_t>(ranks));
    for (int s = 0; s < ranks; ++s) {
      EXPECT_TRUE(gathered[static_cast<std::size_t>(s)].equal(values_of(s)));
      EXPECT_TRUE(gathered[static_cast<std::size_t>(s)].requires_grad());
    }
    weighed(gathered, rank).backward();
    // The sum over r of (r + 1)(rank + 1) 2 x.
    EXPECT_TRUE(own.grad().equal(values_of(rank) * (2 * (rank + 1) * triangle(ranks))));
  });
}

// Of the others' parts this rank's loss uses nothing: their gradients are zeros, and are sent.
TEST_P(Functional, AllGatherOfWhichOnlyOnePartIsUsed) {
  test::run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const auto own = values_of(group->getRank()).requires_grad_();
    const auto gathered = functional::all_gather(group, own);
    gathered[0].sum().backward();
    EXPECT_TRUE(own.grad().equal(
        torch::full({2, 3}, group->getRank() == 0 ? static_cast<float>(group->getSize()) : 0.0F)));
  });
}

TEST_P(Functional, AllGatherTakesWhatIsNotContiguous) {
  test::run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const int rank = group->getRank();
    const auto own = values_of(rank).requires_grad_();
    const auto gathered = functional::all_gather(group, own.t());
    for (int s = 0; s < group->getSize(); ++s)
      EXPECT_TRUE(gathered[static_cast<std::size_t>(s)].equal(values_of(s).t()));
    const auto column = torch::tensor({{1.0F}, {2.0F}, {3.0F}});
    (gathered[static_cast<std::size_t>(rank)] * column).sum().backward();
    EXPECT_TRUE(own.grad().equal(column.t().expand({2, 3})));
  });
}

TEST_P(Functional, AllReduceGivesEachRankTheSumOfTheGradients) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    const auto own = values_of(rank).requires_grad_();
    const auto sum = functional::all_reduce(group, own);
    EXPECT_TRUE(sum.equal(values_of(0) * ranks + 10 * triangle(ranks - 1)));
    EXPECT_TRUE(own.equal(values_of(rank))) << "the input stays as it is";
    (sum * (rank + 1.0)).sum().backward();
    EXPECT_TRUE(own.grad().equal(torch::full({2, 3}, static_cast<float>(triangle(ranks)))));
  });
}

TEST_P(Functional, GradientsCanBeDifferentiatedAgain) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    const auto own = values_of(rank).requires_grad_();
    at::Tensor loss = torch::zeros({});
    for (const auto& part : functional::all_gather(group, own)) loss = loss + part.pow(3).sum();
    const auto gradient = torch::autograd::grad({loss}, {own}, {}, true, true)[0];
    EXPECT_TRUE(gradient.equal(values_of(rank).pow(2) * (3 * ranks)));
    const auto second = torch::autograd::grad({gradient.sum()}, {own})[0];
    EXPECT_TRUE(second.equal(values_of(rank) * (6 * ranks)));
  });
}

TEST_P(Functional, NothingNeedsAGradientWhereNoneIsAskedFor) {
  test::run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const auto own = values_of(group->getRank());
    EXPECT_FALSE(functional::all_gather(group, own)[0].requires_grad());
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(functional::all_reduce(group, own.clone().requires_grad_()).requires_grad());
  });
}

// What the lesson is about, side by side: the plain collective has no way back.
TEST(FunctionalAgainstPlain, OnlyOneHasAGradient) {
  test::run_thread_ranks(2, [](ProcessGroupPtr group) {
    const auto own = values_of(group->getRank()).requires_grad_();
    EXPECT_FALSE(all_gather(*group, own)[1].requires_grad());
    EXPECT_TRUE(functional::all_gather(group, own)[1].requires_grad());
  });
}

TEST(FunctionalFailure, ABackwardThatARankDoesNotEnterIsATimeoutThatNamesTheCollective) {
  using namespace std::chrono_literals;
  const auto thrown =
      test::try_thread_ranks({.world_size = 2, .timeout = 700ms}, [](ProcessGroupPtr group) {
        const auto own = values_of(group->getRank()).requires_grad_();
        const auto gathered = functional::all_gather(group, own);
        if (group->getRank() == 1) return;
        gathered[0].sum().backward();
      });
  ASSERT_NE(thrown[0], nullptr);
  EXPECT_THROW(std::rethrow_exception(thrown[0]), CollectiveError);
}

}  // namespace
}  // namespace lockstep
