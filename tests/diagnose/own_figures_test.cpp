// Evaluations of the ranks' own shares, joined and not.
#include <gtest/gtest.h>

#include <algorithm>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

const char* const kNotReduced = "evaluation-not-reduced";

class OwnFigures : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OwnFigures, kTwoAndThree, testing::PrintToStringParamName());

using Events = std::vector<trace::SharedPayload>;

trace::SharedPayload forward_of(std::int64_t samples, std::uint64_t content) {
  return trace::EvaluationInput{samples, content};
}

trace::SharedPayload figure(double sum, double count) {
  return trace::Metric{"", "", sum, count};
}

trace::SharedPayload all_reduce() {
  return call(1'000, "0", "allreduce", -1, 3);
}

std::int64_t updates_of(const trace::ParticipantTrace& rank) {
  return rank.all<trace::Update>().back().step + 1;
}

// A right job, of which each rank does these things after the last update.
trace::Trace ended_by(int ranks, const std::function<Events(int rank)>& events) {
  auto trace = without<trace::Metric>(Job(ranks).run());
  for (auto& rank : trace.ranks)
    for (const auto& event : events(rank.participant.rank)) record(rank, updates_of(rank), event);
  return trace;
}

// The same after every pass over the train data; `joined` after the last one, too.
trace::Trace passes_ended_by(int ranks, const std::function<Events(int rank)>& events,
                             bool joined) {
  auto trace = without<trace::Metric>(Job(ranks).run());
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> all;
    for (const auto& event : rank.events) {
      all.push_back(event);
      const auto* end = event.as<trace::PassEnd>();
      if (!end || end->phase != "train") continue;
      trace::ParticipantTrace one;
      for (const auto& added : events(rank.participant.rank)) record(one, event.step, added);
      all.insert(all.end(), one.events.begin(), one.events.end());
    }
    rank.events = all;
    if (joined) record(rank, updates_of(rank), all_reduce());
  }
  return trace;
}

Events own_forwards(int rank) {
  return {forward_of(50, 1), forward_of(10 + rank, 0xf0 + rank)};
}

Events own_figures(int rank) {
  return {figure(10 + rank, 50)};
}

TEST_P(OwnFigures, OfOtherSamplesOnEachRankAreNamed) {
  const auto trace = ended_by(GetParam(), own_forwards);
  expect_only(trace, kNotReduced, all_ranks(GetParam()), updates_of(trace.ranks[0]),
              Severity::advice);
  const auto evidence = diagnose::diagnose(trace).findings[0].evidence;
  EXPECT_NE(evidence.find("rank 0: 60 samples; rank 1: 61 samples"), std::string::npos) << evidence;
}

TEST_P(OwnFigures, ThatDifferAreNamed) {
  const auto trace = ended_by(GetParam(), own_figures);
  expect_only(trace, kNotReduced, all_ranks(GetParam()), updates_of(trace.ranks[0]),
              Severity::advice);
  const auto evidence = diagnose::diagnose(trace).findings[0].evidence;
  EXPECT_NE(evidence.find("rank 0: 0.2 of 50; rank 1: 0.22 of 50"), std::string::npos) << evidence;
}

TEST_P(OwnFigures, AreNamedBesideOneThatIsReduced) {
  const auto trace = ended_by(GetParam(), [](int rank) {
    return Events{all_reduce(), figure(7, 100), figure(10 + rank, 50)};
  });
  expect_only(trace, kNotReduced, all_ranks(GetParam()), updates_of(trace.ranks[0]),
              Severity::advice);
}

TEST_P(OwnFigures, AfterEachPassAreNamedWithTheFirst) {
  const auto trace = passes_ended_by(GetParam(), own_forwards, false);
  const auto first = each<trace::PassEnd>(const_cast<trace::Trace&>(trace)).front().first;
  expect_only(trace, kNotReduced, all_ranks(GetParam()), first, Severity::advice);
}

TEST_P(OwnFigures, MayBeJoinedAtTheEnd) {
  expect_nothing(passes_ended_by(GetParam(), own_forwards, true));
  expect_nothing(passes_ended_by(GetParam(), own_figures, true));
}

TEST_P(OwnFigures, ThatACollectiveJoinsAreRight) {
  for (const std::string op : {"allreduce", "allgather", "gather", "send"}) {
    for (const auto& own : {own_forwards, own_figures}) {
      const auto trace = ended_by(GetParam(), [&](int rank) {
        auto events = own(rank);
        events.emplace_back(call(1'000, "0", op, -1, 3));
        return events;
      });
      EXPECT_EQ(state(trace, kNotReduced), State::clean) << op;
    }
  }
}

TEST_P(OwnFigures, MayBeReadBesideThatOfAllRanks) {
  const int ranks = GetParam();
  expect_nothing(ended_by(ranks, [&](int rank) {
    double sum = 0;
    for (int r = 0; r < ranks; ++r) sum += 10 + r;
    return Events{all_reduce(), figure(sum, 50 * ranks), figure(10 + rank, 50)};
  }));
}

TEST_P(OwnFigures, OfTheSameSamplesInAnyOrderAreRight) {
  expect_nothing(ended_by(GetParam(), [](int rank) {
    Events events{forward_of(50, 1), forward_of(50, 2)};
    if (rank == 1) std::swap(events[0], events[1]);
    events.push_back(figure(10, 100));
    return events;
  }));
}

TEST_P(OwnFigures, OfOneRankAloneAreRight) {
  for (const auto& own : {own_forwards, own_figures})
    expect_nothing(
        ended_by(GetParam(), [&](int rank) { return rank == 0 ? own(rank) : Events{}; }));
}

TEST_P(OwnFigures, AreNamedDespiteABarrierWhatOneRankSendsAndTheEnginesOwnCalls) {
  const auto trace = ended_by(GetParam(), [](int rank) {
    Events events{call(1'000, "0", "broadcast", 0, 3)};
    for (const auto& forward : own_forwards(rank)) {
      events.push_back(forward);
      events.emplace_back(call(1'001, "0", "allgather", -1, 3));  // SyncBatchNorm's
      events.emplace_back(trace::Forward{false});
    }
    events.emplace_back(call(1'002, "0", "barrier", -1, 0));
    events.emplace_back(call(1'003, "0", "broadcast", 0, 1));  // what rank 0 decides by its share
    return events;
  });
  expect_only(trace, kNotReduced, all_ranks(GetParam()), updates_of(trace.ranks[0]),
              Severity::advice);
}

TEST_P(OwnFigures, InsideOfAPassAreATeachersOrAPolicys) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks) {
    const auto middle = std::find_if(rank.events.begin(), rank.events.end(), [](const auto& event) {
      return event.step == 2 && event.template is<trace::Update>();
    });
    trace::ParticipantTrace one;
    for (const auto& event : own_forwards(rank.participant.rank)) record(one, 3, event);
    rank.events.insert(middle + 1, one.events.begin(), one.events.end());
  }
  expect_nothing(trace);
}

TEST_P(OwnFigures, OfRanksThatTrainModelsOfTheirOwnAreLeftAlone) {
  Job job(GetParam());
  job.has_engine = job.reduce = job.equal_start = false;
  auto trace = without<trace::Metric>(job.run());
  for (auto& rank : trace.ranks)
    for (const auto& event : own_forwards(rank.participant.rank))
      record(rank, updates_of(rank), event);
  EXPECT_EQ(state(trace, kNotReduced), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
