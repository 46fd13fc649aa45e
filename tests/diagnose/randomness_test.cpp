#include <gtest/gtest.h>

#include <bit>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Randomness : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Randomness, kTwoAndThree, testing::PrintToStringParamName());

// The n-th number of a stream.
std::uint64_t number(std::int64_t stream, std::int64_t n) {
  return std::bit_cast<std::uint64_t>(draw_values(3, stream, n)[0][0]);
}

struct Draw {
  int rank, pass, batch, place;
  std::int64_t id;
  std::int64_t n() const { return (pass * 8 + batch) * 6 + place; }  // of its rank
};

// Two passes of 8 batches of 6 samples; each rank has every W-th sample.
trace::Trace run(int world_size, const std::function<std::uint64_t(const Draw&)>& draw) {
  auto trace = empty_trace(world_size);
  for (int rank = 0; rank < world_size; ++rank)
    for (int pass = 0; pass < 2; ++pass)
      for (int batch = 0; batch < 8; ++batch) {
        std::vector<std::int64_t> ids;
        std::vector<std::uint64_t> hashes;
        for (int place = 0; place < 6; ++place) {
          const std::int64_t id = rank + world_size * (batch * 6 + place);
          ids.push_back(id);
          hashes.push_back(draw({rank, pass, batch, place, id}));
        }
        record(trace.ranks[rank], pass * 8 + batch, trace::RandomNumbers{ids, hashes});
      }
  return trace;
}

std::uint64_t of_the_rank(const Draw& draw) {
  return number(draw.rank, draw.n());
}

TEST_P(Randomness, StreamsOfTheRanksAreRight) {
  const auto trace = run(GetParam(), of_the_rank);
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "same-augmentation-everywhere"), State::clean);
  EXPECT_EQ(state(trace, "worker-streams-copied"), State::clean);
}

TEST_P(Randomness, OneStreamOnAllRanksIsNamed) {
  expect_only(run(GetParam(), [](const Draw& draw) { return number(0, draw.n()); }),
              "same-augmentation-everywhere", all_ranks(GetParam()), 0);
}

TEST_P(Randomness, OneStreamOnTheLastTwoRanksIsNamed) {
  const int last = GetParam() - 1;
  const auto trace = run(GetParam(), [&](const Draw& draw) {
    return number(std::min(draw.rank, last - 1), draw.n());
  });
  expect_only(trace, "same-augmentation-everywhere", {last - 1, last}, 0);
}

// Streams that part after a while (dropout on one rank) were one at first.
TEST_P(Randomness, OneStreamAtFirstIsNamed) {
  const auto trace = run(GetParam(), [](const Draw& draw) {
    return number(0, draw.n() + (draw.n() >= 24 ? draw.rank : 0));
  });
  expect_only(trace, "same-augmentation-everywhere", all_ranks(GetParam()), 0);
}

// Ranks that are seeded by the epoch, in each but the first.
TEST_P(Randomness, OneStreamFromTheSecondPassOnIsNamed) {
  const auto trace = run(GetParam(), [](const Draw& draw) {
    return number(draw.pass == 0 ? draw.rank : 100, draw.n());
  });
  expect_only(trace, "same-augmentation-everywhere", all_ranks(GetParam()), 8);
}

TEST_P(Randomness, BatchesThatMeetNowAndThenAreNoStream) {
  expect_nothing(run(GetParam(), [](const Draw& draw) {
    return number(draw.batch % 3 == 0 ? draw.rank : 100, draw.n());
  }));
}

TEST_P(Randomness, OfEachSampleIsRightWhoeverDrawsIt) {
  const auto of_the_sample = [](const Draw& draw) { return number(draw.id, draw.pass); };
  expect_nothing(run(GetParam(), of_the_sample));
  // All ranks draw the same samples, and so the same numbers.
  auto trace = run(GetParam(), of_the_sample);
  for (auto& rank : trace.ranks) rank.events = trace.ranks[0].events;
  expect_nothing(trace);
}

TEST_P(Randomness, OneDrawForAWholeBatchIsAChoice) {
  const auto of_the_batch = [](const Draw& draw) { return number(draw.rank, draw.batch / 2); };
  expect_nothing(run(GetParam(), of_the_batch));
  const auto of_all_ranks = [](const Draw& draw) { return number(0, draw.batch); };
  expect_nothing(run(GetParam(), of_all_ranks));
}

TEST_P(Randomness, FewCoinsFallAlike) {
  auto trace = run(GetParam(), [](const Draw& draw) { return std::uint64_t(draw.place % 2); });
  for (auto& rank : trace.ranks) rank.events.resize(1);
  expect_nothing(trace);
}

TEST_P(Randomness, ManyCoinsFallAlikeHereAndThere) {
  expect_nothing(run(GetParam(), [](const Draw& draw) { return of_the_rank(draw) >> 20 & 1; }));
}

std::uint64_t of_a_copied_worker(const Draw& draw, int workers) {
  return number(draw.rank, (draw.pass * 8 + draw.batch) / workers * 6 + draw.place);
}

TEST_P(Randomness, CopiesInTwoWorkersAreNamed) {
  expect_only(run(GetParam(), [](const Draw& draw) { return of_a_copied_worker(draw, 2); }),
              "worker-streams-copied", all_ranks(GetParam()), 1);
}

TEST_P(Randomness, CopiesInFourWorkersOfOneRankAreNamed) {
  const auto trace = run(GetParam(), [](const Draw& draw) {
    return draw.rank == 1 ? of_a_copied_worker(draw, 4) : of_the_rank(draw);
  });
  expect_only(trace, "worker-streams-copied", {1}, 1);
  EXPECT_NE(diagnose::diagnose(trace).findings.at(0).evidence.find("for 4 batches"),
            std::string::npos);
}

// Passes of five batches: each begins with a new round, and ends inside one.
trace::Trace run_of_odd_passes(int world_size,
                               const std::function<std::uint64_t(const Draw&)>& draw) {
  auto trace = run(world_size, draw);
  for (auto& rank : trace.ranks) {
    std::erase_if(rank.events, [](const auto& event) { return event.step % 8 >= 5; });
    for (const std::ptrdiff_t begin : {5, 0})
      rank.events.insert(rank.events.begin() + begin, {0, begin, trace::PassBegin{"train", 0}});
  }
  return trace;
}

TEST_P(Randomness, CopiesInWorkersAreNamedWhereAPassEndsInsideARound) {
  for (const int workers : {2, 3, 4}) {
    const auto trace = run_of_odd_passes(GetParam(), [workers](const Draw& draw) {
      return number(draw.rank, (100 * draw.pass + draw.batch / workers) * 6 + draw.place);
    });
    expect_only(trace, "worker-streams-copied", all_ranks(GetParam()), 1);
  }
}

TEST_P(Randomness, PassesThatEndInsideARoundAreRight) {
  const auto trace = run_of_odd_passes(GetParam(), of_the_rank);
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "worker-streams-copied"), State::clean);
  // A stream that starts again every pass.
  expect_nothing(run_of_odd_passes(
      GetParam(), [](const Draw& draw) { return number(draw.rank, draw.batch * 6 + draw.place); }));
  // Equal batches at the beginning of one pass alone.
  expect_nothing(run_of_odd_passes(GetParam(), [](const Draw& draw) {
    return draw.pass == 0 ? number(draw.rank, draw.place) : of_the_rank(draw);
  }));
}

TEST(RandomnessOfOneRank, CopiesInWorkersAreNamed) {
  const auto trace = run(1, [](const Draw& draw) { return of_a_copied_worker(draw, 2); });
  expect_only(trace, "worker-streams-copied", {0}, 1);
  EXPECT_EQ(state(trace, "same-augmentation-everywhere"), State::not_applicable);
}

TEST_P(Randomness, AStreamThatStartsAgainEveryEpochOrAFewEqualBatchesAreNoCopy) {
  expect_nothing(run(
      GetParam(), [](const Draw& draw) { return number(draw.rank, draw.batch * 6 + draw.place); }));
  expect_nothing(run(GetParam(), [](const Draw& draw) {
    return draw.pass == 0 && draw.batch < 4 ? number(draw.rank, draw.place) : of_the_rank(draw);
  }));
}

TEST_P(Randomness, NeedsNumbersOfEveryRank) {
  auto trace = run(GetParam(), [](const Draw& draw) { return number(0, draw.n()); });
  EXPECT_EQ(state(without<trace::RandomNumbers>(trace), "same-augmentation-everywhere"),
            State::not_triggered);
  EXPECT_EQ(state(without<trace::RandomNumbers>(trace), "worker-streams-copied"),
            State::not_triggered);
  trace.ranks.back().events.clear();
  EXPECT_EQ(state(trace, "same-augmentation-everywhere"), State::not_triggered);
}

// A right job, of which each rank also records its generator's state after updates 0 to 3, and after one of the attempt
// before.
trace::Trace drawing(int world_size, const std::function<std::uint64_t(int rank, int step)>& state,
                     bool once_differed = true) {
  const auto told = [](std::uint64_t state) { return trace::RandomState{{"cpu"}, {state}}; };
  auto trace = Job(world_size).run();
  for (auto& rank : trace.ranks) {
    auto before = empty_trace(1).ranks.front();
    record(before, 7, told(once_differed ? 90 + rank.participant.rank : 90));
    rank.events.insert(rank.events.begin(), before.events.begin(), before.events.end());
    rank.last_attempt = before.events.size();
    for (int step = 0; step < 4; ++step)
      record(rank, step, told(state(rank.participant.rank, step)));
  }
  return trace;
}

std::uint64_t of_the_step(int, int step) {
  return step;
}

TEST_P(Randomness, GeneratorsThatGoThroughTheSameStatesAreNamed) {
  expect_only(drawing(GetParam(), of_the_step), "same-random-draws", all_ranks(GetParam()), 1,
              diagnose::Severity::advice);
}

// As `drawing`, of a job that was not started again.
trace::Trace drawing_at_once(int world_size,
                             const std::function<std::uint64_t(int rank, int step)>& state) {
  auto trace = drawing(world_size, state);
  for (auto& rank : trace.ranks) {
    rank.events.erase(rank.events.begin());
    rank.last_attempt = 0;
  }
  return trace;
}

// As after an evaluation that seeds all ranks alike.
TEST_P(Randomness, GeneratorsThatBecomeAlikeInTheRunAreNamed) {
  const auto trace =
      drawing_at_once(GetParam(), [](int rank, int step) { return step < 1 ? 10 + rank : step; });
  expect_only(trace, "same-random-draws", all_ranks(GetParam()), 2, diagnose::Severity::advice);
}

// Values are looked at more rarely as a run goes on.
TEST_P(Randomness, GeneratorsThatStayAlikeBetweenLooksAreNamed) {
  auto trace =
      drawing_at_once(GetParam(), [](int rank, int step) { return step < 1 ? 10 + rank : step; });
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (event.is<trace::RandomState>() && event.step >= 2) event.step = event.step == 2 ? 3 : 5;
  expect_only(trace, "same-random-draws", all_ranks(GetParam()), 2, diagnose::Severity::advice);
}

// As where each epoch begins with the same seed.
TEST_P(Randomness, AGeneratorThatComesBackToAStateIsLeftOpen) {
  const auto diagnosis = diagnose::diagnose(drawing_at_once(
      GetParam(), [](int rank, int step) { return 10 * rank + (step == 3 ? 1 : step); }));
  const auto& line =
      diagnosis.ledger.at(static_cast<std::size_t>(diagnose::Equation::random_numbers));
  EXPECT_EQ(line.standing, diagnose::Standing::open);
  EXPECT_EQ(line.step, 3);
  EXPECT_EQ(line.ranks, all_ranks(GetParam()));
  EXPECT_NE(line.reason.find("after update 3 the generator cpu is in the state that it had after "
                             "update 1"),
            std::string::npos)
      << line.reason;
}

// As where rank 0 evaluates alone, and each epoch has a seed for all ranks.
TEST_P(Randomness, GeneratorsThatBecomeAlikeOnceMoreAreRight) {
  expect_nothing(drawing_at_once(
      GetParam(), [](int rank, int step) { return step == 1 && rank == 0 ? 10 : step; }));
}

// One seed for all, and dropout: many programs do so.
TEST_P(Randomness, GeneratorsThatWereAlikeFromTheStartAreLeftOpen) {
  const auto line = [](const trace::Trace& trace) {
    const auto diagnosis = diagnose::diagnose(trace);
    EXPECT_TRUE(diagnosis.findings.empty());
    return diagnosis.ledger.at(static_cast<std::size_t>(diagnose::Equation::random_numbers));
  };
  const auto alike = line(drawing(GetParam(), of_the_step, false));
  EXPECT_EQ(alike.standing, diagnose::Standing::open);
  EXPECT_EQ(alike.step, 1);
  EXPECT_NE(alike.reason.find("at 4 looks one after another"), std::string::npos) << alike.reason;
  const auto own = line(drawing(
      GetParam(), [](int rank, int step) { return static_cast<std::uint64_t>(10 * rank + step); }));
  EXPECT_EQ(own.standing, diagnose::Standing::held) << own.reason;
  // What was there says more than that others of its events were not.
  auto same = drawing(GetParam(), of_the_step, false);
  for (auto& rank : same.ranks) {
    const auto of_first = each<trace::LocalGradients>(same.ranks[0]);
    const auto of_rank = each<trace::LocalGradients>(rank);
    for (std::size_t i = 0; i < of_rank.size(); ++i) of_rank[i].second = of_first[i].second;
  }
  EXPECT_EQ(diagnose::diagnose(same)
                .ledger.at(static_cast<std::size_t>(diagnose::Equation::random_numbers))
                .reason,
            "the ranks' gradients are not known to differ");
}

TEST_P(Randomness, GeneratorsOfEachRankOrThatNobodyDrawsFromAreRight) {
  expect_nothing(drawing(GetParam(), [](int rank, int step) { return 10 * rank + step; }));
  expect_nothing(drawing(GetParam(), [](int, int) { return 0; }));
  expect_nothing(drawing(GetParam(), [](int, int step) { return step / 2; }));
  // They part in the last of the steps.
  expect_nothing(
      drawing(GetParam(), [](int rank, int step) { return step < 3 ? step : 10 + rank; }));
}

TEST_P(Randomness, GeneratorsOfRanksThatTrainOnTheSameDataAreLeftAlone) {
  auto trace = drawing(GetParam(), of_the_step);
  for (auto& rank : trace.ranks) {
    const auto of_first = each<trace::LocalGradients>(trace.ranks[0]);
    const auto own = each<trace::LocalGradients>(rank);
    for (std::size_t i = 0; i < own.size(); ++i) own[i].second.values = of_first[i].second.values;
  }
  EXPECT_EQ(state(trace, "same-random-draws"), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
