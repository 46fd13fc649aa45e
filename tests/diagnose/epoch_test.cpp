#include <gtest/gtest.h>

#include <algorithm>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using Told = std::optional<std::int64_t>;

class Epoch : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Epoch, kOneToThree, testing::PrintToStringParamName());

std::int64_t second_pass(const Job& job) {
  return (static_cast<std::int64_t>(job.samples + job.world_size - 1) / job.world_size + job.batch -
          1) /
         job.batch;
}

Job frozen(int world_size) {
  Job job(world_size);
  job.order = [world_size](int rank, int) { return deal({101, world_size}, rank, 0); };
  return job;
}

TEST_P(Epoch, NeverToldOrTheSameEveryTimeIsNamed) {
  for (const auto& told : {Told(), Told(7)}) {
    auto job = frozen(GetParam());
    job.told = [&](int, int) { return told; };
    expect_only(job.run(), "missing-set-epoch", all_ranks(GetParam()), second_pass(job));
  }
}

// A teacher whose sampler was told, and then a student whose sampler is not.
TEST_P(Epoch, NeverToldToTheSecondModelIsNamed) {
  const auto one_after_another = [](bool second_is_told) {
    Job job(GetParam());
    job.passes = 4;
    job.order = [=](int rank, int pass) {
      return deal({101, GetParam()}, rank, pass < 2 || second_is_told ? pass : 0);
    };
    job.told = [=](int, int pass) { return pass < 2 || second_is_told ? Told(pass) : Told(); };
    auto trace = job.run();
    const auto step = 2 * second_pass(job);
    for (auto& rank : trace.ranks) {
      const auto begins =
          std::find_if(rank.events.begin(), rank.events.end(), [&](const trace::Event& event) {
            return event.step == step &&
                   (event.is<trace::SetEpoch>() || event.is<trace::PassBegin>());
          });
      const auto* model = rank.all<trace::Model>().front().event;
      const trace::Model again = *model;
      rank.events.insert(begins,
                         {trace::Event{0, step, again},
                          trace::Event{0, step, trace::Engine{"distributed_data_parallel", 2}}});
    }
    return trace;
  };
  EXPECT_EQ(state(one_after_another(true), "missing-set-epoch"), State::clean);
  EXPECT_EQ(state(one_after_another(false), "missing-set-epoch"), State::found);
}

TEST_P(Epoch, NeverToldToASamplerThatReshufflesIsRight) {
  Job job(GetParam());
  job.told = [](int, int) { return Told(); };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "missing-set-epoch"), State::clean);
}

TEST_P(Epoch, OfAnOrderThatIsMeantToStayIsRight) {
  for (const auto tell : {Job::Tell::before_pass, Job::Tell::after_first_batch}) {
    Job job(GetParam());
    job.order = [w = GetParam()](int rank, int) { return deal({101, w, false}, rank, 0); };
    job.tell = tell;
    expect_nothing(job.run());
    job.passes = 2;
    expect_nothing(job.run());
    job.told = [](int, int) { return Told(); };
    expect_nothing(job.run());
  }
}

// Hashes of content: a file that is read in one order looks shuffled.
Job stream(int world_size, bool shuffles) {
  Job job(world_size);
  job.order = [=](int rank, int pass) {
    auto ids = deal({101, world_size}, rank, shuffles ? pass : 0);
    for (auto& id : ids) id = -1 - id;
    return ids;
  };
  return job;
}

TEST_P(Epoch, OfAStreamIsNotKnown) {
  auto job = stream(GetParam(), false);
  job.numbers_passes = false;
  for (const auto tell : {Job::Tell::before_pass, Job::Tell::after_first_batch}) {
    job.tell = tell;
    for (const auto* slug : {"missing-set-epoch", "set-epoch-on-copy", "epoch-set-after-prefetch"})
      EXPECT_EQ(state(job.run(), slug), State::not_triggered) << slug;
  }
}

// Workers that live on hold copies of the data set, which go on with the epoch that they were made in.
TEST_P(Epoch, ThatAStreamCountsAndNobodyReadsIsAdvice) {
  const auto counted = [](Job job) {
    job.told = [](int, int) { return Told(); };
    return job.run();
  };
  auto job = stream(GetParam(), false);
  expect_only(counted(job), "set-epoch-on-copy", all_ranks(GetParam()), second_pass(job),
              diagnose::Severity::advice);
  expect_nothing(counted(stream(GetParam(), true)));
}

TEST_P(Epoch, CountedFromOneOrToldTwiceIsRight) {
  Job job(GetParam());
  job.told = [](int, int pass) { return Told(pass + 1); };
  job.order = [w = GetParam()](int rank, int pass) { return deal({101, w}, rank, pass + 1); };
  expect_nothing(job.run());
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    for (std::size_t i = 0; i < rank.events.size(); ++i)
      if (rank.events[i].is<trace::SetEpoch>()) {
        rank.events.insert(rank.events.begin() + static_cast<std::ptrdiff_t>(i), rank.events[i]);
        ++i;
      }
  expect_nothing(trace);
}

TEST_P(Epoch, ToldToACopyIsNamed) {
  for (const auto tell : {Job::Tell::before_pass, Job::Tell::after_begin, Job::Tell::at_end}) {
    auto job = frozen(GetParam());
    job.tell = tell;
    if (tell == Job::Tell::at_end) job.told = [](int, int pass) { return Told(pass + 1); };
    expect_only(job.run(), "set-epoch-on-copy", all_ranks(GetParam()), second_pass(job));
  }
}

TEST_P(Epoch, ToldWhenItsPassIsOverIsNamed) {
  Job job(GetParam());
  job.told = [](int, int pass) { return pass == 0 ? Told() : Told(pass - 1); };
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w}, rank, std::max(pass - 1, 0));
  };
  expect_only(job.run(), "missing-set-epoch", all_ranks(GetParam()), second_pass(job));
}

TEST_P(Epoch, OfOnePassSaysNothing) {
  auto job = frozen(GetParam());
  job.passes = 1;
  for (const auto* slug : {"missing-set-epoch", "set-epoch-on-copy", "epoch-set-after-prefetch"})
    EXPECT_EQ(state(job.run(), slug), State::not_triggered) << slug;
  EXPECT_EQ(state(job.run(), "epoch-differs-by-rank"),
            GetParam() == 1 ? State::not_applicable : State::not_triggered);
}

TEST_P(Epoch, OfTooFewSamplesSaysNothing) {
  Job job(GetParam());
  job.samples = 3;
  job.batch = 1;
  job.told = [](int, int) { return Told(); };
  job.order = [](int, int) { return Ids{2, 0}; };
  EXPECT_EQ(state(job.run(), "missing-set-epoch"), State::not_triggered);
}

// The first batch comes from the order of the epoch before, the rest from this one's.
Job stale_first_batch(int world_size, int first_epoch) {
  Job job(world_size);
  job.tell = Job::Tell::after_first_batch;
  job.told = [first_epoch](int, int pass) { return Told(pass + first_epoch); };
  job.order = [world_size, first_epoch](int rank, int pass) {
    auto ids = deal({101, world_size}, rank, pass + first_epoch);
    const auto last = pass + first_epoch - 1;
    const auto stale = deal({101, world_size}, rank, last < 0 ? 0 : last);
    std::copy(stale.begin(), stale.begin() + 4, ids.begin());
    return ids;
  };
  return job;
}

TEST_P(Epoch, ToldAfterTheFirstBatchIsNamed) {
  auto job = stale_first_batch(GetParam(), 0);
  expect_only(job.run(), "epoch-set-after-prefetch", all_ranks(GetParam()), second_pass(job));
  job.tell = Job::Tell::before_pass;  // between the dealing and the fetch
  expect_only(job.run(), "epoch-set-after-prefetch", all_ranks(GetParam()), second_pass(job));
  expect_only(stale_first_batch(GetParam(), 1).run(), "epoch-set-after-prefetch",
              all_ranks(GetParam()), -2);
}

TEST_P(Epoch, ThatBeginsWithOneBatchOnPurposeIsRight) {
  Job job(GetParam());
  job.order = [w = GetParam()](int rank, int pass) {
    auto ids = deal({101, w}, rank, 99);
    ids.resize(4);
    const auto all = deal({101, w}, rank, pass);
    ids.insert(ids.end(), all.begin(), all.end());
    return ids;
  };
  EXPECT_EQ(state(job.run(), "epoch-set-after-prefetch"), State::clean);
}

// The whole order was made before the epoch was told: every pass but the first lags by one.
TEST_P(Epoch, ToldAfterTheWholeOrderWasMadeIsNamed) {
  Job job(GetParam());
  job.tell = Job::Tell::after_first_batch;
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w}, rank, std::max(0, pass - 1));
  };
  expect_only(job.run(), "epoch-set-after-prefetch", all_ranks(GetParam()), second_pass(job));
  job.passes = 2;
  expect_only(job.run(), "epoch-set-after-prefetch", all_ranks(GetParam()), second_pass(job));
}

TEST_P(Epoch, ToldAtAnyTimeBeforeTheFirstBatchIsRight) {
  Job job(GetParam());
  job.tell = Job::Tell::after_begin;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "epoch-set-after-prefetch"), State::clean);
  job.tell = Job::Tell::at_end;  // of the pass before
  job.told = [](int, int pass) { return Told(pass + 1); };
  expect_nothing(job.run());
}

TEST_P(Epoch, ThatDiffersIsNamed) {
  if (GetParam() == 1) return;
  Job job(GetParam());
  job.told = [](int rank, int pass) { return Told(pass + rank); };
  job.order = [w = GetParam()](int rank, int pass) { return deal({101, w}, rank, pass + rank); };
  expect_only(job.run(), "epoch-differs-by-rank", all_ranks(GetParam()), 0);
}

TEST_P(Epoch, ToldOnOneRankOnlyIsNamed) {
  if (GetParam() == 1) return;
  Job job(GetParam());
  job.told = [](int rank, int pass) { return rank == 0 ? Told(pass) : Told(); };
  job.order = [w = GetParam()](int rank, int pass) {
    return deal({101, w}, rank, rank == 0 ? pass : 0);
  };
  expect_only(job.run(), "epoch-differs-by-rank", odd_one_out(GetParam(), 0), second_pass(job));
}

TEST_P(Epoch, ThatDiffersAndDecidesNothingIsRight) {
  Job job(GetParam());
  job.told = [](int rank, int pass) { return Told(pass + rank); };
  expect_nothing(job.run());
  job.most_batches = 2;
  expect_nothing(job.run());
}

trace::Trace evaluated_inside(trace::Trace trace, Told told) {
  for (auto& rank : trace.ranks)
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const auto* samples = rank.events[i].as<trace::Samples>();
      if (!samples || samples->phase != "train") continue;
      trace::ParticipantTrace inside;
      record(inside, rank.events[i].step, trace::PassBegin{"evaluation", 0});
      if (told) record(inside, rank.events[i].step, trace::SetEpoch{*told});
      record(inside, rank.events[i].step, trace::Samples{"evaluation", {1, 2, 3}});
      record(inside, rank.events[i].step, trace::PassEnd{"evaluation", 0, 1});
      rank.events.insert(rank.events.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                         inside.events.begin(), inside.events.end());
    }
  return trace;
}

// An evaluation in the middle of a pass, with a sampler and an epoch of its own.
TEST_P(Epoch, OfAnEvaluationInsideAPassIsNotThePasses) {
  auto frozen_job = frozen(GetParam());
  frozen_job.told = [](int, int) { return Told(); };
  EXPECT_EQ(state(evaluated_inside(frozen_job.run(), std::nullopt), "missing-set-epoch"),
            State::found);
  auto unsharded = Job(GetParam());
  unsharded.order = [](int, int pass) { return permutation(101, pass); };
  EXPECT_EQ(state(evaluated_inside(unsharded.run(), 99), "no-sharding"),
            GetParam() == 1 ? State::not_applicable : State::found);
  const auto trace = evaluated_inside(Job(GetParam()).run(), 99);
  for (const auto* slug : {"no-sharding", "stream-not-sharded", "set-epoch-on-copy",
                           "missing-set-epoch", "epoch-set-after-prefetch"}) {
    const auto now = state(trace, slug);
    EXPECT_TRUE(now == State::clean || now == State::not_applicable) << slug;
  }
}

TEST_P(Epoch, NeedsToBeTold) {
  const auto trace = without<trace::SetEpoch>(Job(GetParam()).run());
  EXPECT_EQ(state(trace, "epoch-set-after-prefetch"), State::not_triggered);
  EXPECT_EQ(state(trace, "epoch-differs-by-rank"),
            GetParam() == 1 ? State::not_applicable : State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
