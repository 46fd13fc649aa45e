// The blocking collectives, on 2 to 4 ranks: what they compute, and how they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>

#include <future>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(Collectives, AllReduceSumsAndTakesTheMaximum) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    at::Tensor sum = torch::full({3}, rank + 1, torch::kInt64);
    all_reduce(*group, sum);
    EXPECT_TRUE(sum.equal(torch::full({3}, ranks * (ranks + 1) / 2, torch::kInt64)));
    at::Tensor highest = torch::tensor({static_cast<float>(-rank), static_cast<float>(rank)});
    all_reduce(*group, highest, c10d::ReduceOp::MAX);
    EXPECT_TRUE(highest.equal(torch::tensor({0.0F, static_cast<float>(ranks - 1)})));
  });
}

TEST_P(Collectives, BroadcastComesFromTheRoot) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    for (int root = 0; root < ranks; ++root) {
      at::Tensor tensor = torch::full({2, 2}, group->getRank() * 10.0);
      broadcast(*group, tensor, root);
      EXPECT_TRUE(tensor.equal(torch::full({2, 2}, root * 10.0)));
    }
  });
}

TEST_P(Collectives, AllGatherIsInRankOrder) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    // Not contiguous on purpose.
    const auto mine = torch::arange(6).reshape({2, 3}).t() + 100 * group->getRank();
    const auto all = all_gather(*group, mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_TRUE(all[static_cast<std::size_t>(rank)].equal(torch::arange(6).reshape({2, 3}).t() +
                                                            100 * rank));
  });
}

TEST_P(Collectives, BarrierHoldsUntilAllAreThere) {
  const int ranks = GetParam();
  std::atomic<int> arrived{0};
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      barrier(*group);
      EXPECT_GE(arrived, round * ranks);
      barrier(*group);
    }
  });
}

TEST(CollectiveFailure, AMissingRankIsATimeoutThatSaysWhatWasWaitedFor) {
  std::promise<void> over;
  const auto ended = over.get_future().share();
  std::string caught;
  const auto thrown =
      test::try_thread_ranks({.world_size = 2, .timeout = 700ms}, [&](ProcessGroupPtr group) {
        at::Tensor tensor = torch::ones({4});
        all_reduce(*group, tensor);
        if (group->getRank() == 1) {  // is there, and never enters the second one
          ended.wait_for(30s);
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        try {
          all_reduce(*group, tensor);
        } catch (const CollectiveError& error) {
          EXPECT_EQ(error.rank, 0);
          EXPECT_EQ(error.operation, "all_reduce");
          EXPECT_EQ(error.sequence, 3);  // a barrier comes before, when the ranks are started
          EXPECT_EQ(error.timeout, 700ms);
          caught = error.what();
        }
        const auto waited = std::chrono::steady_clock::now() - start;
        EXPECT_GE(waited, 600ms);
        EXPECT_LT(waited, 5s);
        over.set_value();
      });
  for (const auto& error : thrown) EXPECT_EQ(error, nullptr);
  EXPECT_THAT(caught, ::testing::HasSubstr("all_reduce"));
  EXPECT_THAT(caught,
              ::testing::Not(::testing::HasSubstr("Exception raised from")));  // no stack trace
}

TEST(CollectiveFailure, ARankThatLeavesIsAnErrorAtOnceNotATimeout) {
  const auto start = std::chrono::steady_clock::now();
  const auto thrown =
      test::try_thread_ranks({.world_size = 2, .timeout = 60s}, [](ProcessGroupPtr group) {
        barrier(*group);  // both are connected
        if (group->getRank() == 1) return;
        at::Tensor tensor = torch::ones({4});
        EXPECT_THROW(all_reduce(*group, tensor), CollectiveError);
      });
  EXPECT_EQ(thrown[0], nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

}  // namespace
}  // namespace lockstep
