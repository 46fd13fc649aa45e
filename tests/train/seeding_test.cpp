// Seeds: the documented formula, and that streams differ where they must.
#include <gtest/gtest.h>
#include <lockstep/train/seeding.h>
#include <torch/torch.h>

#include <bit>
#include <limits>
#include <random>
#include <set>

namespace lockstep {
namespace {

// Computed from the formula in seeding.h with Python's integers.
TEST(Seeding, IsTheDocumentedFormula) {
  EXPECT_EQ(rank_seed(0, 0), 0xa706dd2f4d197e6fU);
  EXPECT_EQ(rank_seed(0, 1), 0x2a98f501af37e97fU);
  EXPECT_EQ(rank_seed(42, 3), 0x6a18965c8a3cca10U);
  EXPECT_EQ(sample_seed(0, 0, 0), 0x238275bc38fcbe91U);
  EXPECT_EQ(sample_seed(0, 0, 1), 0x421daf3033e887a3U);
  EXPECT_EQ(sample_seed(7, 3, 59'999), 0xc3b2f22ba224bf8dU);
  EXPECT_EQ(sample_seed(std::numeric_limits<std::uint64_t>::max(), -1,
                        std::numeric_limits<std::int64_t>::max()),
            0xcc4752e837ecd981U);
}

TEST(Seeding, NoTwoIndicesOfAnEpochShareASeed) {
  constexpr std::int64_t kSamples = 500'000;
  std::vector<std::uint64_t> seeds;
  for (std::int64_t index = 0; index < kSamples; ++index) seeds.push_back(sample_seed(5, 2, index));
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
}

// Where plain sums meet: seed + rank, epoch + index.
TEST(Seeding, NeighboursDoNotMeet) {
  std::set<std::uint64_t> seeds;
  std::size_t made = 0;
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    for (int rank = 0; rank < 32; ++rank, ++made) seeds.insert(rank_seed(seed, rank));
    for (std::int64_t epoch = 0; epoch < 32; ++epoch)
      for (std::int64_t index = 0; index < 32; ++index, ++made)
        seeds.insert(sample_seed(seed, epoch, index));
  }
  EXPECT_EQ(seeds.size(), made);
}

// torch's CPU generator goes by the low half: a step in any number turns half of its bits.
TEST(Seeding, TheLowHalfIsMixedToo) {
  double turned = 0;
  constexpr int kPairs = 3'000;
  const auto low = [](std::uint64_t seed) { return static_cast<std::uint32_t>(seed); };
  for (std::int64_t i = 0; i < kPairs / 3; ++i) {
    const auto here = low(sample_seed(3, i, 1'000 - i));
    turned += std::popcount(here ^ low(sample_seed(3, i, 1'001 - i)));
    turned += std::popcount(here ^ low(sample_seed(3, i + 1, 1'000 - i)));
    turned += std::popcount(here ^ low(sample_seed(4, i, 1'000 - i)));
  }
  EXPECT_NEAR(turned / kPairs, 16, 0.5);  // 5 standard deviations: 0.26
}

TEST(Seeding, ARanksOwnNumbersFollowFromSeedAndRank) {
  const auto numbers = [](std::uint64_t seed, int rank) {
    manual_seed_per_rank(seed, rank);
    return torch::rand({8}, at::kDouble);
  };
  const auto first = numbers(1, 0);
  EXPECT_TRUE(first.equal(numbers(1, 0)));
  EXPECT_FALSE(first.equal(numbers(1, 1)));
  EXPECT_FALSE(numbers(0, 1).equal(first)) << "rank 1 of seed 0 is not rank 0 of seed 1";
  torch::manual_seed(rank_seed(1, 0));
  EXPECT_TRUE(first.equal(torch::rand({8}, at::kDouble)));
}

}  // namespace
}  // namespace lockstep
