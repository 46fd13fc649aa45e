// Streams as Python's are recorded: of no known length, their samples known by hashes of content.
#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class ShardingOfAStream : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShardingOfAStream, kTwoAndThree, testing::PrintToStringParamName());

Job stream_of(int world_size, const std::function<Ids(int rank, int pass)>& samples) {
  Job job(world_size);
  job.numbers_passes = false;
  job.dataset = [](int) { return trace::Dataset{"train", 0, 0, 0, 0, 0}; };
  job.order = [=](int rank, int pass) {
    auto ids = samples(rank, pass);
    for (auto& id : ids) id = -1 - id * 7919 % 1'000'003;
    return ids;
  };
  return job;
}

Ids in_file_order(int, int) {
  return deal({101, 1, false}, 0, 0);
}

TEST_P(ShardingOfAStream, ThatEveryRankReadsOnceIsNamed) {
  expect_only(stream_of(GetParam(), in_file_order).run(), "stream-not-sharded",
              all_ranks(GetParam()), 0);
  const auto shuffled = [](int rank, int pass) { return permutation(101, 10 * pass + rank); };
  expect_only(stream_of(GetParam(), shuffled).run(), "stream-not-sharded", all_ranks(GetParam()),
              0);
}

TEST_P(ShardingOfAStream, OfWhichRanksTakeSharesOfDifferentOrdersIsAdvice) {
  const auto shares = [w = GetParam()](int rank, int pass) {
    auto ids = permutation(96, 10 * pass + rank);
    ids.resize(static_cast<std::size_t>(96 / w));
    return ids;
  };
  const auto trace = stream_of(GetParam(), shares).run();
  expect_only(trace, "shards-overlap", all_ranks(GetParam()), 0, diagnose::Severity::advice);
  auto alone = stream_of(GetParam(), shares);
  alone.has_engine = false;
  EXPECT_EQ(state(alone.run(), "shards-overlap"), State::not_triggered);
}

TEST_P(ShardingOfAStream, IsNoMatterForRanksThatTrainOnTheirOwn) {
  auto job = stream_of(GetParam(), in_file_order);
  job.has_engine = false;
  EXPECT_EQ(state(job.run(), "stream-not-sharded"), State::not_triggered);
}

TEST_P(ShardingOfAStream, IsNotKnownWhereNoSampleComesAgain) {
  const auto split = [w = GetParam()](int rank, int) { return deal({96, w, false}, rank, 0); };
  const auto augmented = [](int rank, int pass) {
    auto ids = permutation(101, 0);
    for (auto& id : ids) id += 101 * (10 * pass + rank);
    return ids;
  };
  for (const auto& job : {stream_of(GetParam(), split), stream_of(GetParam(), augmented)}) {
    expect_nothing(job.run());
    for (const auto* slug :
         {"stream-not-sharded", "no-sharding", "shards-overlap", "sharded-twice"})
      EXPECT_EQ(state(job.run(), slug), State::not_triggered) << slug;
  }
}

TEST_P(ShardingOfAStream, WithEqualSamplesIsRight) {
  const auto changed = [w = GetParam()](auto change) {
    return stream_of(w, [=](int rank, int) {
      auto ids = deal({96, w, false}, rank, 0);
      for (auto& id : ids) id = change(id);
      return ids;
    });
  };
  expect_nothing(changed([](std::int64_t id) { return id % 7; }).run());
  expect_nothing(changed([](std::int64_t id) { return id % 5 == 0 ? 0 : id; }).run());
  expect_nothing(changed([](std::int64_t) { return 1; }).run());
}

TEST_P(ShardingOfAStream, OfOneBatchTrainedAgainAndAgainIsRight) {
  auto job = stream_of(GetParam(), [](int, int) { return deal({32, 1, false}, 0, 0); });
  job.batch = 32;
  expect_nothing(job.run());
}

}  // namespace
}  // namespace lockstep::simulated
