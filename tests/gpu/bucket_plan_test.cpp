// How kernels cut their work, tried on the CPU: every element once, wherever it lies.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/gpu/kernels/bucket_plan.h>

#include <map>
#include <numeric>

namespace lockstep::gpu {
namespace {

static_assert(sizeof(Table) <= 32'764 - 32, "all of a kernel's parameters");

// Where in the bucket each chunk's elements go, [begin, end), as the kernel's blocks find them.
std::map<std::int64_t, std::int64_t> ranges(const std::vector<Table>& tables) {
  std::map<std::int64_t, std::int64_t> ranges;
  for (const auto& table : tables)
    for (std::int64_t number = 0; number < table.chunks; ++number) {
      const auto piece = chunk(table, number);
      const auto begin = table.span[piece.span].offset + piece.begin;
      EXPECT_GT(piece.count, 0);
      EXPECT_LE(piece.count, kChunk);
      EXPECT_LE(piece.begin + piece.count, table.span[piece.span].count);
      EXPECT_TRUE(ranges.emplace(begin, begin + piece.count).second);
    }
  return ranges;
}

void expect_all_once(const std::vector<std::int64_t>& sizes) {
  std::vector<std::uint64_t> tensors(sizes.size());
  std::iota(tensors.begin(), tensors.end(), 1000u);
  std::int64_t next = 0;
  for (const auto& [begin, end] : ranges(plan(tensors, sizes))) {
    EXPECT_EQ(begin, next);
    next = end;
  }
  EXPECT_EQ(next, std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
}

TEST(BucketPlan, MovesEveryElementOnce) {
  expect_all_once({1});
  expect_all_once({3, 1, 2});
  expect_all_once({kChunk});
  expect_all_once({kChunk - 1, kChunk, kChunk + 1, 2 * kChunk, 5 * kChunk + 7});
}

TEST(BucketPlan, LeavesEmptyTensorsOut) {
  EXPECT_TRUE(plan({}, {}).empty());
  EXPECT_TRUE(plan({8, 16}, {0, 0}).empty());
  expect_all_once({0, 3, 0, 0, 4, 0});
  const auto tables = plan({8, 16, 24}, {0, 3, 4});
  ASSERT_EQ(tables.size(), 1u);
  ASSERT_EQ(tables[0].spans, 2);
  EXPECT_EQ(tables[0].span[0].tensor, 16u);
  EXPECT_EQ(tables[0].span[1].tensor, 24u);
  EXPECT_EQ(tables[0].span[1].offset, 3);
}

TEST(BucketPlan, GoesOnInAnotherLaunchWhereATableIsFull) {
  const std::vector<std::int64_t> sizes(2 * kTensorsPerLaunch + 1, 5);
  expect_all_once(sizes);
  const auto tables = plan(std::vector<std::uint64_t>(sizes.size(), 16), sizes);
  ASSERT_EQ(tables.size(), 3u);
  EXPECT_EQ(tables[1].span[0].offset, 5 * kTensorsPerLaunch) << "its offset counts on";
  EXPECT_EQ(tables[1].first_chunk[0], 0) << "its chunks begin anew";
  EXPECT_EQ(tables[2].spans, 1);
}

TEST(BucketPlan, CountsBeyondTwoToThe31) {
  constexpr std::int64_t kLarge = (std::int64_t{1} << 31) + 5;
  const auto tables = plan({16, 32, 48}, {kLarge, 3, kLarge});
  ASSERT_EQ(tables.size(), 1u);
  const auto& table = tables[0];
  EXPECT_EQ(table.chunks, 2 * ((std::int64_t{1} << 17) + 1) + 1);
  EXPECT_EQ(table.span[2].offset, kLarge + 3);
  const auto last = chunk(table, table.chunks - 1);
  EXPECT_EQ(last.span, 2);
  EXPECT_EQ(last.begin + last.count, kLarge);
  EXPECT_EQ(last.count, 5);
  EXPECT_EQ(chunk(table, std::int64_t{1} << 17).count, 5) << "the first tensor's last";
}

TEST(BucketPlan, RefusesWhatDoesNotFit) {
  EXPECT_THROW(plan({1, 2}, {3}), UsageError);
  EXPECT_THROW(plan({1}, {-1}), UsageError);
}

// By hand, for each pair of addresses: vectors begin at a multiple of 16 on both sides, and are as many as can be.
TEST(AlignmentSplit, IsRightAtEveryAddressAndSize) {
  for (const std::int64_t size : {4, 2})
    for (std::uint64_t from = 160; from < 176; from += static_cast<std::uint64_t>(size))
      for (std::uint64_t to = 320; to < 336; to += static_cast<std::uint64_t>(size))
        for (std::int64_t count = 0; count < 40; ++count) {
          const auto split = alignment_split(from, to, count, size);
          const auto whole = 16 / size;
          ASSERT_EQ(split.head + split.vectors * whole + split.tail, count);
          ASSERT_GE(split.head, 0);
          ASSERT_GE(split.tail, 0);
          if (split.vectors > 0) {
            ASSERT_EQ((from + static_cast<std::uint64_t>(split.head * size)) % 16, 0u);
            ASSERT_EQ((to + static_cast<std::uint64_t>(split.head * size)) % 16, 0u);
            ASSERT_LT(split.head, whole);
            ASSERT_LT(split.tail, whole);
          } else if (from % 16 == to % 16) {
            ASSERT_LT(count, 2 * whole) << "there was room for a vector";
          }
        }
}

TEST(AlignmentSplit, HasNoVectorsWhereTheTwoAreNeverTogether) {
  EXPECT_EQ(alignment_split(16, 20, 1000, 4).vectors, 0);
  EXPECT_EQ(alignment_split(16, 20, 1000, 4).head, 1000);
  EXPECT_EQ(alignment_split(17, 17, 1000, 4).vectors, 0) << "no float lies there";
}

TEST(GridSize, FillsTheGpuAndNoMore) {
  EXPECT_EQ(grid_size(1, 132), 1);
  EXPECT_EQ(grid_size(4223, 132), 4223);
  EXPECT_EQ(grid_size(std::int64_t{1} << 40, 132), 4224);
}

}  // namespace
}  // namespace lockstep::gpu
