#include <gtest/gtest.h>

#include <random>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Sharding : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Sharding, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Sharding, ByNobodyIsNamed) {
  Job job(GetParam());
  job.order = [](int, int pass) { return permutation(101, pass); };
  expect_only(job.run(), "no-sharding", all_ranks(GetParam()), 0);
  job.order = [](int rank, int pass) { return permutation(101, 10 * pass + rank); };
  expect_only(job.run(), "no-sharding", all_ranks(GetParam()), 0);
}

TEST_P(Sharding, OfEvaluationIsAChoice) {
  Job job(GetParam());
  job.evaluation_order = [](int, int) { return deal({101, 1, false}, 0, 0); };
  expect_nothing(job.run());
}

TEST_P(Sharding, DrawingWithReplacementIsRight) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(100 * pass + rank));
    Ids ids(static_cast<std::size_t>(2 * 101 / w));
    for (auto& id : ids) id = static_cast<std::int64_t>(generator() % 101);
    return ids;
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "stream-not-sharded"), State::clean);
}

TEST_P(Sharding, DrawingWithReplacementFromOneSeedIsNoStream) {
  Job job(GetParam());
  job.order = [](int, int pass) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(pass));
    Ids ids(202);
    for (auto& id : ids) id = static_cast<std::int64_t>(generator() % 101);
    return ids;
  };
  EXPECT_EQ(state(job.run(), "stream-not-sharded"), State::clean);
}

TEST_P(Sharding, ByDrawingAPartAtRandomIsAChoice) {
  Job job(GetParam());
  job.order = [](int rank, int pass) {
    auto ids = permutation(101, 10 * pass + rank);
    ids.resize(80);
    return ids;
  };
  expect_nothing(job.run());
}

// Two workers, each with a stream of its own, in turns of a batch.
Ids two_workers(const Ids& first, const Ids& second, std::size_t batch) {
  Ids ids;
  for (std::size_t begin = 0; begin < first.size(); begin += batch)
    for (const auto* stream : {&first, &second})
      for (std::size_t i = begin; i < std::min(begin + batch, stream->size()); ++i)
        ids.push_back((*stream)[i]);
  return ids;
}

Ids every(std::int64_t samples, std::int64_t from, std::int64_t step) {
  Ids ids;
  for (std::int64_t id = from; id < samples; id += step) ids.push_back(id);
  return ids;
}

Job stream(int world_size, bool sharded_by_rank, bool sharded_by_worker) {
  Job job(world_size);
  job.samples = 32 * world_size;
  job.passes = 1;
  job.order = [=](int rank, int) {
    const auto readers = (sharded_by_rank ? world_size : 1) * (sharded_by_worker ? 2 : 1);
    const auto worker = [&](int w) {
      return every(
          32 * world_size,
          (sharded_by_rank ? rank : 0) * (sharded_by_worker ? 2 : 1) + (sharded_by_worker ? w : 0),
          readers);
    };
    return two_workers(worker(0), worker(1), 4);
  };
  return job;
}

TEST_P(Sharding, OfAStreamByNobodyIsNamed) {
  expect_only(stream(GetParam(), false, false).run(), "stream-not-sharded", all_ranks(GetParam()),
              0);
}

TEST_P(Sharding, OfAStreamThatEachWorkerShufflesIsNamed) {
  Job job(GetParam());
  job.passes = 1;
  job.order = [](int, int) { return two_workers(permutation(101, 1), permutation(101, 2), 4); };
  expect_only(job.run(), "stream-not-sharded", all_ranks(GetParam()), 0);
}

TEST_P(Sharding, OfAStreamByRanksAndNotByWorkersIsNamed) {
  expect_only(stream(GetParam(), true, false).run(), "stream-not-sharded", all_ranks(GetParam()),
              0);
}

TEST_P(Sharding, OfAStreamByBothIsRight) {
  expect_nothing(stream(GetParam(), true, true).run());
  EXPECT_EQ(state(stream(GetParam(), true, true).run(), "stream-not-sharded"), State::clean);
}

TEST(ShardingOfOneRank, ConcernsItsWorkers) {
  expect_only(stream(1, false, false).run(), "stream-not-sharded", {0}, 0);
  expect_nothing(stream(1, false, true).run());
}

// Positions from 0 on in a file of each rank's own.
TEST_P(Sharding, OfFilesOfTheRanksOwnIsRight) {
  Job job(GetParam());
  job.dataset = [](int rank) {
    const auto own = static_cast<std::uint64_t>(rank);
    return trace::Dataset{"train", 101, 101, 20 + own, 20 + own, 0};
  };
  job.order = [](int rank, int pass) { return permutation(101, 10 * pass + rank); };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "no-sharding"), State::not_triggered);
  job.passes = 1;
  job.order = [](int, int) { return two_workers(permutation(101, 1), permutation(101, 2), 4); };
  expect_nothing(job.run());
}

TEST_P(Sharding, RepeatedPassesOfAShardAreRight) {
  Job job(GetParam());
  job.passes = 1;
  job.order = [w = GetParam()](int rank, int) {
    auto ids = deal({96, w}, rank, 0), again = deal({96, w}, rank, 0);
    ids.insert(ids.end(), again.begin(), again.end());
    return ids;
  };
  expect_nothing(job.run());
}

// One pass of those ids, again and again.
Job repeated(int world_size, std::int64_t batch, int times, const std::function<Ids(int)>& ids) {
  Job job(world_size);
  job.passes = 1;
  job.batch = batch;
  job.reference_lr = 0;  // not declared
  job.order = [=](int rank, int) {
    Ids all;
    for (int i = 0; i < times; ++i)
      for (const auto id : ids(rank)) all.push_back(id);
    return all;
  };
  return job;
}

TEST(ShardingOfAFewBatches, TrainedAgainAndAgainIsRight) {
  for (const int w : {1, 2, 3, 4, 8}) {
    // One batch, of every rank's own or the same one; the whole data in one batch; a few batches.
    expect_nothing(repeated(w, 4, 100, [](int rank) {
                     return Ids{4 * rank, 4 * rank + 1, 90, 91};
                   }).run());
    expect_nothing(repeated(w, 4, 100, [](int) { return Ids{1, 2, 3, 4}; }).run());
    expect_nothing(repeated(w, 101, 20, [](int) { return deal({101, 1}, 0, 0); }).run());
    expect_nothing(repeated(w, 4, 50, [](int) { return Ids{1, 2, 3, 4, 5, 6, 7, 8}; }).run());
  }
}

// Each rank holds every W-th run of 8 ids, and then shuffles and splits that part by `splits` again.
Job by_files(int world_size, int splits) {
  const std::int64_t samples = 32 * world_size;
  const auto held = [=](int rank) {
    Ids ids;
    for (std::int64_t id = 0; id < samples; ++id)
      if (id / 8 % world_size == rank) ids.push_back(id);
    return ids;
  };
  Job job(world_size);
  job.samples = samples;
  job.dataset = [=](int rank) {
    const auto own = static_cast<std::uint64_t>(rank);
    return trace::Dataset{"train", 32, samples, 20 + own, 30 + own, 40 + own};
  };
  job.order = [=](int rank, int pass) {
    Ids ids;
    for (const auto position : deal({32, splits}, splits == 1 ? 0 : rank, pass))
      ids.push_back(held(rank)[static_cast<std::size_t>(position)]);
    return ids;
  };
  return job;
}

TEST_P(Sharding, ByFilesAndByASamplerIsNamed) {
  expect_only(by_files(GetParam(), GetParam()).run(), "sharded-twice", all_ranks(GetParam()), 0);
}

// Nobody says how large all of it is: each rank has its own files, and positions in their list for ids.
TEST_P(Sharding, OfEachRanksOwnDataByASamplerIsNamed) {
  Job job(GetParam());
  job.samples = 32;
  const auto own_files = [](int rank) {
    const auto own = static_cast<std::uint64_t>(rank);
    return trace::Dataset{"train", 32, 32, 20 + own, 30 + own, 40 + own};
  };
  job.dataset = own_files;
  job.order = [w = GetParam()](int rank, int pass) { return deal({32, w}, rank, pass); };
  expect_only(job.run(), "sharded-twice", all_ranks(GetParam()), 0);
  job.order = [](int rank, int pass) { return permutation(32, 10 * pass + rank); };
  expect_nothing(job.run());  // each draws all of its own
  job.order = [w = GetParam()](int rank, int pass) { return deal({32, w}, rank, pass); };
  job.dataset = [](int) { return trace::Dataset{"train", 32, 32, 20, 30, 40}; };
  expect_nothing(job.run());  // all of them have the same files
  job.dataset = [&](int rank) {
    auto own = own_files(rank);
    own.content_as_set = 0;
    return own;
  };
  expect_nothing(job.run());  // something differs, and it is not known whether samples do
}

TEST_P(Sharding, ByFilesAndByASamplerThatCutsIsNamed) {
  auto job = by_files(GetParam(), GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    Ids ids;
    for (const auto position : deal({32, w, true, true}, rank, pass))
      ids.push_back((position / 8 * w + rank) * 8 + position % 8);
    return ids;
  };
  expect_only(job.run(), "sharded-twice", all_ranks(GetParam()), 0);
}

// A share of the 500 is no whole number of batches of 32; so many batches as would fit into one.
TEST_P(Sharding, ByFilesInAPassThatStopsAtAShareIsRight) {
  const std::int64_t held = 500;
  Job job(GetParam());
  job.samples = held * GetParam();
  job.batch = 32;
  job.most_batches = (held + GetParam() - 1) / GetParam() / job.batch;
  job.dataset = [&](int rank) {
    const auto own = static_cast<std::uint64_t>(rank);
    return trace::Dataset{"train", held, job.samples, 20 + own, 30 + own, 40 + own};
  };
  job.order = [=](int rank, int pass) {
    auto ids = permutation(held, 10 * pass + rank);
    for (auto& id : ids) id += held * rank;
    return ids;
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "sharded-twice"), State::not_triggered);
}

TEST_P(Sharding, ByFilesAloneIsRightInWholePassesAndShortOnes) {
  auto job = by_files(GetParam(), 1);
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "sharded-twice"), State::clean);
  job.most_batches = 5;
  expect_nothing(job.run());
}

// 4 batches of 4 to each rank in a pass, of 16 W W samples: a W-th of a W-th, in whole batches.
Job a_share_of_a_share(int world_size, int passes) {
  Job job(world_size);
  job.samples = 16 * world_size * world_size;
  job.passes = passes;
  job.order = [world_size, samples = job.samples](int rank, int pass) {
    const auto share = deal({samples, world_size}, rank, pass);
    Ids ids;
    for (std::size_t i = 0; i < share.size(); i += static_cast<std::size_t>(world_size))
      ids.push_back(share[i]);
    return ids;
  };
  return job;
}

TEST_P(Sharding, OfAShareInEveryPassIsAdvisedAgainst) {
  expect_only(a_share_of_a_share(GetParam(), 2).run(), "sharded-twice", all_ranks(GetParam()), 0,
              diagnose::Severity::advice);
  expect_nothing(a_share_of_a_share(GetParam(), 1).run());  // it may have been told to stop there
}

// Each rank shuffles with a seed of its own, and takes its part of that.
Job own_seeds(int world_size, std::int64_t samples = 101) {
  Job job(world_size);
  job.samples = samples;
  job.order = [=](int rank, int pass) {
    return deal({samples, world_size}, rank, 1000 * rank + pass);
  };
  return job;
}

TEST_P(Sharding, OfAnotherOrderOnEachRankIsNamed) {
  expect_only(own_seeds(GetParam()).run(), "shards-overlap", all_ranks(GetParam()), 0,
              diagnose::Severity::advice);
}

TEST_P(Sharding, OfAnotherOrderOnEachRankThatIsCutIsNamed) {
  auto job = own_seeds(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w, true, true}, rank, 1000 * rank + pass);
  };
  expect_only(job.run(), "shards-overlap", all_ranks(GetParam()), 0, diagnose::Severity::advice);
}

// From the second pass on, as where a checkpoint brought one rank another seed.
TEST_P(Sharding, OfAnotherOrderOnEachRankIsNamedWhereItBegins) {
  auto job = own_seeds(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w}, rank, pass == 0 ? 0 : 1000 * rank + pass);
  };
  const auto batches = (101 + GetParam() - 1) / GetParam();
  expect_only(job.run(), "shards-overlap", all_ranks(GetParam()), (batches + 3) / 4,
              diagnose::Severity::advice);
}

TEST_P(Sharding, IsNoMatterForRanksThatTrainOnTheirOwn) {
  auto job = own_seeds(GetParam());
  job.has_engine = false;
  EXPECT_EQ(state(job.run(), "shards-overlap"), State::not_triggered);
  job.order = [](int, int pass) { return permutation(101, pass); };
  EXPECT_EQ(state(job.run(), "no-sharding"), State::not_triggered);
  job.passes = 1;
  job.order = [](int, int) { return two_workers(permutation(101, 1), permutation(101, 2), 4); };
  expect_nothing(job.run());
}

TEST_P(Sharding, OfAnotherSeedInEachPassIsRight) {
  Job job(GetParam());
  job.told = [](int, int) { return std::nullopt; };
  job.order = [w = GetParam()](int rank, int pass) { return deal({101, w}, rank, 77 * pass); };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "shards-overlap"), State::clean);
}

// A share of samples on each rank, with repeats: a sampler with weights, say.
TEST_P(Sharding, ByDrawingAShareWithRepeatsIsAChoice) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    std::mt19937_64 generator(static_cast<std::uint64_t>(100 * pass + rank));
    Ids ids(static_cast<std::size_t>((101 + w - 1) / w));
    for (auto& id : ids) id = static_cast<std::int64_t>(generator() % 30);
    return ids;
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "shards-overlap"), State::clean);
}

TEST_P(Sharding, ByDrawingAnotherNumberThanAShareIsAChoice) {
  for (const int less : {1, -8}) {
    auto job = own_seeds(GetParam());
    job.order = [w = GetParam(), less](int rank, int pass) {
      auto ids = permutation(101, 10 * pass + rank);
      ids.resize(static_cast<std::size_t>(101 / w - less * 3));
      return ids;
    };
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "shards-overlap"), State::clean);
  }
}

TEST_P(Sharding, OfAnotherEpochOnEachRankIsTheEpochs) {
  auto job = own_seeds(GetParam());
  job.told = [](int rank, int pass) { return 1000 * rank + pass; };
  const auto trace = job.run();
  EXPECT_EQ(state(trace, "shards-overlap"), State::clean);
  EXPECT_EQ(state(trace, "epoch-differs-by-rank"), State::found);
}

TEST_P(Sharding, OfDataIndexedOtherwiseIsTheFiles) {
  auto job = own_seeds(GetParam());
  job.dataset = [](int rank) {
    return trace::Dataset{"train", 101, 101, 50 + static_cast<std::uint64_t>(rank), 12, 13};
  };
  const auto trace = job.run();
  EXPECT_EQ(state(trace, "shards-overlap"), State::clean);
  EXPECT_EQ(state(trace, "file-order-differs"), State::found);
}

TEST_P(Sharding, OfAlmostNoDataCannotOverlap) {
  EXPECT_EQ(state(own_seeds(GetParam(), 2 * GetParam() - 1).run(), "shards-overlap"),
            State::not_applicable);
}

// 24 a rank: by chance, draws with repeats may have none among so few.
TEST_P(Sharding, OfAFewSamplesARankIsNotKnown) {
  auto job = own_seeds(GetParam(), 8 * GetParam());
  EXPECT_EQ(state(job.run(), "shards-overlap"), State::not_triggered);
  job.passes = 4;
  EXPECT_EQ(state(job.run(), "shards-overlap"), State::found);
}

TEST_P(Sharding, OfAPassThatStopsEarlyIsRight) {
  Job job(GetParam());
  job.most_batches = 3;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "sharded-twice"), State::clean);
}

TEST(ShardingOfTwoRanks, ThatStopsAtTwoThirdsOfAShareIsRight) {
  Job job(2);
  job.batch = 17;
  job.most_batches = 2;
  expect_nothing(job.run());
}

TEST_P(Sharding, NeedsSamples) {
  const auto trace = without<trace::PassBegin>(Job(GetParam()).run());
  for (const auto* slug : {"no-sharding", "stream-not-sharded", "sharded-twice", "shards-overlap",
                           "tail-never-seen", "empty-shard"})
    EXPECT_EQ(state(trace, slug), State::not_triggered) << slug;
}

// A sampler that pads deals one sample twice, and a rank leaves one out that does not fill a batch.
TEST_P(Sharding, OfAPaddedSetInWholeBatchesIsRight) {
  const int w = GetParam();
  const auto size = static_cast<std::size_t>(16 * w - 1);
  Job job(w);
  job.samples = 16 * w - 1;
  job.order = [w, size](int rank, int pass) {
    const auto order = permutation(static_cast<std::int64_t>(size), pass);
    Ids mine;
    for (auto i = static_cast<std::size_t>(rank); i <= size; i += static_cast<std::size_t>(w))
      mine.push_back(order[i % size]);
    if (rank == 0) mine.pop_back();
    return mine;
  };
  EXPECT_EQ(state(job.run(), "shards-overlap"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
