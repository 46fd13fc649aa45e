#include <gtest/gtest.h>

#include <algorithm>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Data : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Data, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Data, MadeUpOnEachRankIsNamed) {
  Job job(GetParam());
  job.dataset = [](int rank) {
    return trace::Dataset{"train", 101, 101, 11, 12, 100 + static_cast<std::uint64_t>(rank)};
  };
  expect_only(job.run(), "dataset-unseeded", all_ranks(GetParam()), -1);
}

TEST(DataOfFour, TheRankWithOtherDataIsTheOneNamed) {
  Job job(4);
  job.dataset = [](int rank) {
    return trace::Dataset{"train", 101, 101, 11, 12, rank == 3 ? 14u : 13u};
  };
  expect_only(job.run(), "dataset-unseeded", {3}, -1);
}

// They draw from two sets side by side, in any order.
TEST_P(Data, BesideOthersThatAllHoldIsNamed) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks) record(rank, 0, trace::Dataset{"train", 40, 40, 0, 0, 7});
  EXPECT_EQ(state(trace, "dataset-unseeded"), State::clean);
  for (auto [step, set] : each<trace::Dataset>(trace.ranks.back()))
    if (set.size == 40) set.content_as_set = 8;
  EXPECT_EQ(state(trace, "dataset-unseeded"), State::found);
}

TEST_P(Data, OfWhichEachRankHoldsAPartIsRight) {
  Job job(GetParam());
  job.dataset = [w = GetParam()](int rank) {
    const auto own = static_cast<std::uint64_t>(rank);
    return trace::Dataset{"train", 100 / w + 1, 101, 20 + own, 30 + own, 40 + own};
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "dataset-unseeded"), State::clean);
}

// Which id each rank finds at a position, where each lists the same files from another one on.
Ids through_turned_files(const Ids& positions, int rank) {
  Ids ids;
  for (const auto position : positions) ids.push_back((position + 10 * rank) % 101);
  return ids;
}

Job turned_files(int world_size) {
  Job job(world_size);
  job.dataset = [](int rank) {
    return trace::Dataset{"train", 101, 101, 50 + static_cast<std::uint64_t>(rank), 12, 13};
  };
  job.order = [world_size](int rank, int pass) {
    return through_turned_files(deal({101, world_size}, rank, pass), rank);
  };
  return job;
}

TEST_P(Data, ListedInAnotherOrderIsNamed) {
  expect_only(turned_files(GetParam()).run(), "file-order-differs", all_ranks(GetParam()), 0);
}

TEST_P(Data, ListedInAnotherOrderAndSplitByIdIsRight) {
  auto job = turned_files(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    Ids mine;
    for (const auto id : permutation(101, 100 * pass + rank))
      if (id % w == rank) mine.push_back(id);
    return mine;
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "file-order-differs"), State::clean);
}

TEST_P(Data, NeedsToBeRecorded) {
  const auto trace = without<trace::Dataset>(turned_files(GetParam()).run());
  for (const auto* slug :
       {"dataset-unseeded", "file-order-differs", "no-sharding", "sharded-twice", "tail-never-seen",
        "padding-overruns", "empty-shard", "epoch-differs-by-rank"})
    EXPECT_EQ(state(trace, slug), State::not_triggered) << slug;
}

// As LibTorch's sampler does with allow_duplicates=false: cut the tail off, then shuffle what is left.
Ids cut_then_permute(int world_size, int rank, int pass) {
  Ids mine;
  const auto order = permutation(101 / world_size * world_size, pass);
  for (std::size_t i = static_cast<std::size_t>(rank); i < order.size();
       i += static_cast<std::size_t>(world_size))
    mine.push_back(order[i]);
  return mine;
}

TEST_P(Data, WhoseTailNobodyDrawsIsNamed) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) { return cut_then_permute(w, rank, pass); };
  expect_only(job.run(), "tail-never-seen", all_ranks(GetParam()), 0);
}

// What does not fill a last batch is left out as well, and is not the same in every pass.
Ids whole_batches(Ids ids) {
  ids.resize(ids.size() / 4 * 4);
  return ids;
}

TEST_P(Data, WhoseTailNobodyDrawsInWholeBatchesIsNamed) {
  Job job(GetParam());
  job.passes = 6;
  job.order = [w = GetParam()](int rank, int pass) {
    return whole_batches(cut_then_permute(w, rank, pass));
  };
  expect_only(job.run(), "tail-never-seen", all_ranks(GetParam()), 0);
  job.order = [w = GetParam()](int rank, int pass) {
    return whole_batches(deal({101, w, true, true}, rank, pass));
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "tail-never-seen"), State::clean);
}

// Ids that are no positions: 1 to 101, or far apart.
Ids renamed(Ids ids, std::int64_t from, std::int64_t times) {
  for (auto& id : ids) id = from + times * id;
  return ids;
}

TEST_P(Data, WithOtherIdsThanPositionsIsRight) {
  for (const std::int64_t times : {1, 1000}) {
    Job job(GetParam());
    job.order = [w = GetParam(), times](int rank, int pass) {
      return renamed(deal({101, w}, rank, pass), 1, times);
    };
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "tail-never-seen"), State::clean);
    job.order = [w = GetParam(), times](int rank, int pass) {
      return renamed(deal({101, w, true, true}, rank, pass), 1, times);
    };
    expect_nothing(job.run());
  }
}

TEST_P(Data, WithOtherIdsWhoseTailNobodyDrawsIsNamed) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    return renamed(cut_then_permute(w, rank, pass), 1, 1000);
  };
  expect_only(job.run(), "tail-never-seen", all_ranks(GetParam()), 0);
}

TEST_P(Data, WhoseIdsArePositionsTellsWhichAreMissing) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) { return cut_then_permute(w, rank, pass); };
  const auto evidence = [&] { return diagnose::diagnose(job.run()).findings.at(0).evidence; };
  EXPECT_EQ(evidence().find("from id"), std::string::npos) << evidence();
  job.dataset = [](int) {
    return trace::Dataset{"train", 101, 101, hash_of_positions(101), 12, 13};
  };
  const auto first = std::to_string(101 / GetParam() * GetParam());
  EXPECT_NE(evidence().find("from id " + first), std::string::npos) << evidence();
}

TEST_P(Data, PermutedAndThenCutIsRight) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w, true, true}, rank, pass);
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "tail-never-seen"), State::clean);
}

TEST_P(Data, InOneAscendingOrderLosesItsTailByChoice) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w, false, true}, rank, pass);
  };
  expect_nothing(job.run());
}

TEST_P(Data, OfOnePassSaysNothingOfTails) {
  Job job(GetParam());
  job.passes = 1;
  job.order = [w = GetParam()](int rank, int pass) { return cut_then_permute(w, rank, pass); };
  EXPECT_EQ(state(job.run(), "tail-never-seen"), State::not_triggered);
  job.samples = 24 * 4;
  EXPECT_EQ(state(job.run(), "tail-never-seen"), State::not_applicable);
}

TEST(DataOfThreeSamples, MayMissTheSameOneByChance) {
  Job job(2);
  job.samples = 3;
  job.batch = 1;
  job.order = [](int rank, int pass) { return Ids{(rank + pass) % 2}; };
  EXPECT_EQ(state(job.run(), "tail-never-seen"), State::not_triggered);
}

// A run that dies on its first batch: LibTorch's sequential sampler pads once only.
trace::Trace overrun(int world_size, std::int64_t samples) {
  auto trace = empty_trace(world_size);
  for (int r = 0; r < world_size; ++r) {
    auto& rank = trace.ranks[r];
    record(rank, -1, trace::Dataset{"train", samples, samples, hash_of_positions(samples), 2, 3});
    record(rank, 0, trace::PassBegin{"train", 0});
    record(rank, 0, trace::Samples{"train", {r < 2 * samples ? r % samples : r}});
  }
  return trace;
}

TEST(DataOfOneSample, DrawnPastItsEndIsNamedThoughTheRunDied) {
  expect_only(overrun(3, 1), "padding-overruns", {2}, 0);
  expect_only(overrun(4, 1), "padding-overruns", {2, 3}, 0);
  expect_only(overrun(8, 3), "padding-overruns", {6, 7}, 0);
}

TEST(DataOfOneSample, WrappedAroundIsRight) {
  for (const int world_size : {3, 4, 8}) {
    Job job(world_size);
    job.samples = 1;
    job.passes = 1;
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "padding-overruns"), State::clean);
    EXPECT_EQ(state(job.run(), "no-sharding"), State::not_applicable);
  }
  EXPECT_EQ(state(Job(2).run(), "padding-overruns"), State::not_applicable);
}

TEST(DataOfOneSample, WithAnotherIdThanItsPositionIsRight) {
  Job job(8);
  job.passes = 1;
  job.samples = 1;
  job.order = [](int, int) { return Ids{1}; };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "padding-overruns"), State::clean);
  job.samples = 3;
  job.order = [](int rank, int) { return Ids{7 + rank % 2}; };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "padding-overruns"), State::not_triggered);
}

TEST_P(Data, OfWhichARankHasNoBatchIsNamed) {
  Job job(GetParam());
  job.passes = 1;
  const int last = GetParam() - 1;
  job.order = [w = GetParam(), last](int rank, int pass) {
    return rank == last ? Ids{} : deal({101, w}, rank, pass);
  };
  expect_only(job.run(), "empty-shard", {last}, 0);
  job.order = [](int, int) { return Ids{}; };
  expect_only(job.run(), "empty-shard", all_ranks(GetParam()), 0);
}

TEST_P(Data, SmallerThanABatchIsRight) {
  Job job(GetParam());
  job.batch = 1'000;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "empty-shard"), State::clean);
}

TEST_P(Data, WhoseSamplesWereNotRecordedIsNoEmptyShard) {
  const auto trace = without<trace::Samples>(Job(GetParam()).run());
  EXPECT_EQ(state(trace, "empty-shard"), State::not_triggered);
  EXPECT_EQ(state(without<trace::PassEnd>(trace), "empty-shard"), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
