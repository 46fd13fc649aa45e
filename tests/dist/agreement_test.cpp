// What ranks find out about each other: means over all, and whether they agree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/metrics.h>

#include <cmath>
#include <limits>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class Agreements : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Agreements, ::testing::Values(1, 2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

std::uint64_t collectives(const ProcessGroupPtr& group) {
  return group->getDefaultBackend()->getSequenceNumberForGroup();
}

TEST_P(Agreements, MeansAreWeightedByTheirCounts) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    // Rank r holds r values of r: of unequal parts, and rank 0 of none.
    const int rank = group->getRank();
    Mean own;
    own.add(torch::full({rank}, static_cast<float>(rank)));
    EXPECT_EQ(own.count, rank);
    double sum = 0, count = 0;
    for (int r = 0; r < ranks; ++r) sum += r * r, count += r;
    const auto before = collectives(group);
    const auto all = reduce_metric(*group, own);
    EXPECT_EQ(collectives(group) - before, 1U);
    EXPECT_EQ(all.sum, sum);
    EXPECT_EQ(all.count, count);
    if (ranks > 1)
      EXPECT_EQ(all.value(), sum / count);
    else
      EXPECT_TRUE(std::isnan(all.value()));
  });
}

// 2^24 + 1 and its neighbours are no float32; tokens are counted in such numbers.
TEST_P(Agreements, CountsAreExactBeyondFloat32) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const auto all = reduce_metric(*group, {16'777'217.0 + 2.0 * group->getRank(), 16'777'217.0});
    EXPECT_EQ(all.sum, 16'777'217.0 * ranks + ranks * (ranks - 1));
    EXPECT_EQ(all.count, 16'777'217.0 * ranks);
  });
}

TEST_P(Agreements, EqualNumbersAgreeAtTheCostOfOneCollective) {
  test::run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    for (const auto value :
         {std::int64_t{0}, std::int64_t{-7}, std::numeric_limits<std::int64_t>::min(),
          std::numeric_limits<std::int64_t>::max()}) {
      const auto before = collectives(group);
      const auto agreement = all_agree(*group, value);
      EXPECT_EQ(collectives(group) - before, 1U);
      EXPECT_TRUE(agreement.agreed()) << agreement.disagreement;
      EXPECT_EQ(agreement.least, value);
      EXPECT_EQ(agreement.most, value);
      EXPECT_EQ(agreement.disagreement, "");
      EXPECT_NO_THROW(require_agreement(*group, "the number", value));
    }
  });
}

TEST(Disagreement, SaysWhoSaidWhat) {
  test::run_thread_ranks(3, [](ProcessGroupPtr group) {
    const auto agreement = all_agree(*group, std::int64_t{group->getRank() == 1 ? 3 : 5});
    EXPECT_FALSE(agreement.agreed());
    EXPECT_EQ(agreement.least, 3);
    EXPECT_EQ(agreement.most, 5);
    EXPECT_EQ(agreement.disagreement, "3 on rank 1, 5 on ranks 0 and 2");
  });
}

TEST(Disagreement, HoldsForTheExtremes) {
  test::run_thread_ranks(2, [](ProcessGroupPtr group) {
    const auto value = group->getRank() == 0 ? std::numeric_limits<std::int64_t>::min()
                                             : std::numeric_limits<std::int64_t>::max();
    const auto agreement = all_agree(*group, value);
    EXPECT_EQ(agreement.least, std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(agreement.most, std::numeric_limits<std::int64_t>::max());
  });
}

// Neither the least nor the most belongs to one rank here, and the middle is told too.
TEST(Disagreement, IsFoundAmongFour) {
  test::run_thread_ranks(4, [](ProcessGroupPtr group) {
    const std::int64_t said[] = {2, 9, 2, 4};
    EXPECT_EQ(all_agree(*group, said[group->getRank()]).disagreement,
              "2 on ranks 0 and 2, 4 on rank 3, 9 on rank 1");
  });
}

TEST_P(Agreements, OfYesAndNo) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const auto all = all_agree(*group, true);
    EXPECT_TRUE(all.agreed() && all.all_yes() && all.any_yes());
    const auto none = all_agree(*group, false);
    EXPECT_TRUE(none.agreed());
    EXPECT_FALSE(none.all_yes() || none.any_yes());
    if (ranks == 1) return;
    const auto some = all_agree(*group, group->getRank() == ranks - 1);
    EXPECT_FALSE(some.agreed() || some.all_yes());
    EXPECT_TRUE(some.any_yes());
    EXPECT_THAT(some.disagreement, HasSubstr("1 on rank " + std::to_string(ranks - 1)));
  });
}

TEST(Disagreement, ThatMustNotBeThrowsOnEveryRank) {
  const auto thrown = test::try_thread_ranks({.world_size = 3}, [](ProcessGroupPtr group) {
    require_agreement(*group, "batches of an epoch", group->getRank() == 2 ? 11 : 12);
  });
  for (const auto& error : thrown) {
    ASSERT_NE(error, nullptr);
    try {
      std::rethrow_exception(error);
    } catch (const Error& told) {
      EXPECT_THAT(told.what(), HasSubstr("batches of an epoch"));
      EXPECT_THAT(told.what(), HasSubstr("11 on rank 2, 12 on ranks 0 and 1"));
    }
  }
}

}  // namespace
}  // namespace lockstep
