#include <gtest/gtest.h>

#include <iterator>
#include <utility>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Metrics : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Metrics, kTwoAndThree, testing::PrintToStringParamName());

constexpr std::int64_t kEvaluatedSamples = 101;

// An evaluation of every rank's own part: each adds up its part and reports what `report` says.
struct EvaluationOfRanks {
  int world_size;
  std::string phase = "evaluation";
  bool everyone_draws_all = false;

  double own(int rank) const {
    return everyone_draws_all ? kEvaluatedSamples
                              : (kEvaluatedSamples - rank + world_size - 1) / world_size;
  }
  double hits(int rank) const { return everyone_draws_all ? 70 : 20 + rank; }
  double all_hits() const {
    double sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += hits(rank);
    return sum;
  }

  trace::Trace run(const std::function<std::vector<trace::Metric>(const EvaluationOfRanks&,
                                                                  int rank)>& report) const {
    auto trace = empty_trace(world_size);
    for (int pass = 0; pass < 2; ++pass)
      for (int rank = 0; rank < world_size; ++rank) {
        auto& events = trace.ranks[rank];
        record(events, 5, trace::PassBegin{phase, pass});
        Ids ids;
        for (std::int64_t id = 0; id < kEvaluatedSamples; ++id)
          if (everyone_draws_all || id % world_size == rank) ids.push_back(id);
        record(events, 5, trace::Samples{phase, ids});
        record(events, 5, trace::PassEnd{phase, pass, 1});
        for (auto metric : report(*this, rank)) {
          metric.phase = phase;
          record(events, 5, metric);
        }
      }
    return trace;
  }
};

using Report = std::vector<trace::Metric>;

Report reduced(const EvaluationOfRanks& job, int) {
  return {{"accuracy", "", job.all_hits(), kEvaluatedSamples}};
}

TEST_P(Metrics, ReducedOnAllRanksAreRight) {
  const auto trace = EvaluationOfRanks{GetParam()}.run(reduced);
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "local-hits-global-count"), State::clean);
  EXPECT_EQ(state(trace, "rank-zero-metric"), State::clean);
}

TEST_P(Metrics, OfRankZerosPartAloneAreAdvice) {
  for (const std::string phase : {"evaluation", "train"}) {
    const EvaluationOfRanks job{GetParam(), phase};
    const auto trace = job.run([](const EvaluationOfRanks& of, int rank) -> Report {
      if (rank != 0) return {};
      return {{"loss", "", of.hits(0), of.own(0)}};
    });
    expect_only(trace, "rank-zero-metric", {0}, 5, diagnose::Severity::advice);
  }
}

TEST_P(Metrics, OfRankZerosPartBesideReducedOnesAreAdvice) {
  const auto trace = EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) {
    auto report = reduced(job, rank);
    if (rank == 0) report.insert(report.begin(), {"loss", "", 3.25, job.own(0)});
    return report;
  });
  expect_only(trace, "rank-zero-metric", {0}, 5, diagnose::Severity::advice);
}

TEST_P(Metrics, ReducedAndReportedByRankZeroAreRight) {
  expect_nothing(EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) {
    return rank == 0 ? reduced(job, rank) : Report{};
  }));
}

TEST_P(Metrics, ThatEveryRankReportsOfItsOwnAreRight) {
  expect_nothing(
      EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) -> Report {
        return {{"loss", "", job.hits(rank), job.own(rank)}};
      }));
}

TEST_P(Metrics, OfSamplesThatEveryRankDrewAreRight) {
  const EvaluationOfRanks job{.world_size = GetParam(), .everyone_draws_all = true};
  expect_nothing(job.run([](const EvaluationOfRanks& of, int rank) -> Report {
    if (rank != 0) return {};
    return {{"loss", "", of.hits(0), of.own(0)}};
  }));
  // Models that differ a little, each scored on everything.
  expect_nothing(job.run([](const EvaluationOfRanks& of, int rank) -> Report {
    return {{"accuracy", "", of.hits(rank) + rank, of.own(rank)}};
  }));
}

TEST_P(Metrics, OfLocalHitsOverAllSamplesAreNamed) {
  const auto trace =
      EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) -> Report {
        return {{"accuracy", "", job.hits(rank), kEvaluatedSamples}};
      });
  expect_only(trace, "local-hits-global-count", all_ranks(GetParam()), 5);
}

TEST_P(Metrics, OfLocalHitsBesideAReducedOneOfRankZeroAreNamed) {
  const auto trace = EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) {
    Report report{{"accuracy", "", job.hits(rank), kEvaluatedSamples}};
    if (rank == 0) report.insert(report.begin(), {"loss", "", 181.5, kEvaluatedSamples});
    return report;
  });
  expect_only(trace, "local-hits-global-count", all_ranks(GetParam()), 5);
}

// A job that was started again: the figures behind a pass are that pass's, though one before it never ended.
TEST_P(Metrics, OfAPassBehindOneThatBrokeOffAreItsOwn) {
  auto trace =
      EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) -> Report {
        return {{"accuracy", "", job.hits(rank), kEvaluatedSamples}};
      });
  for (auto& rank : trace.ranks) {
    auto events = std::exchange(rank.events, {});
    record(rank, 1, trace::PassBegin{"evaluation", 0});
    record(rank, 1, trace::Attempt{.restart_count = 1});
    events.resize(events.size() / 2);  // its first pass
    std::move(events.begin(), events.end(), std::back_inserter(rank.events));
  }
  expect_only(trace, "local-hits-global-count", all_ranks(GetParam()), 5);
}

// Of two ranks a node, say: each pair has its own sums over more than a rank's samples.
TEST(MetricsOfPartOfTheRanks, AreNoLocalHits) {
  for (const int world_size : {3, 4, 8})
    expect_nothing(
        EvaluationOfRanks{world_size}.run([](const EvaluationOfRanks& job, int rank) -> Report {
          return {{"accuracy", "", job.hits(rank / 2), job.own(rank) + 1}};
        }));
}

TEST_P(Metrics, EqualToTheLastBitsAreReduced) {
  expect_nothing(
      EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) -> Report {
        return {{"loss", "", job.all_hits() * (1 + 1e-9 * rank), kEvaluatedSamples}};
      }));
}

TEST_P(Metrics, OfSamplesThatWereNotRecordedAreNotKnown) {
  auto trace =
      EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) -> Report {
        return {{"accuracy", "", job.hits(rank), job.own(rank)}};
      });
  for (const auto& [step, samples] : each<trace::Samples>(trace)) samples.ids = {};
  for (const auto* slug : {"rank-zero-metric", "local-hits-global-count"})
    EXPECT_EQ(state(trace, slug), State::not_triggered) << slug;
}

TEST_P(Metrics, NeedPassesAndEveryRank) {
  auto trace = EvaluationOfRanks{GetParam()}.run(reduced);
  for (const std::string slug : {"rank-zero-metric", "local-hits-global-count"}) {
    EXPECT_EQ(state(without<trace::Metric>(trace), slug), State::not_triggered);
    EXPECT_EQ(state(without<trace::PassEnd>(trace), slug), State::not_triggered);
  }
  const auto on_rank_zero =
      EvaluationOfRanks{GetParam()}.run([](const EvaluationOfRanks& job, int rank) {
        return rank == 0 ? reduced(job, rank) : Report{};
      });
  EXPECT_EQ(state(on_rank_zero, "local-hits-global-count"), State::not_triggered);
}

TEST(MetricsOfOneRank, AreEverybodys) {
  const auto trace = EvaluationOfRanks{1}.run(reduced);
  EXPECT_EQ(state(trace, "rank-zero-metric"), State::not_applicable);
  EXPECT_EQ(state(trace, "local-hits-global-count"), State::not_applicable);
}

}  // namespace
}  // namespace lockstep::simulated
