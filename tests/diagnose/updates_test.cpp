// What the ranks do with equal gradients.
#include <gtest/gtest.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Updates : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Updates, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Updates, WithAnotherRateAreNamedAtTheFirstStep) {
  auto trace = Job(GetParam()).run();
  for (auto [step, update] : each<trace::Update>(trace.ranks[1]))
    if (step >= 2) update.lr = {0.2};
  expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), 2);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("rank 1 with 0.2"),
            std::string::npos);
}

TEST_P(Updates, OfEqualGradientsToOtherParametersAreNamed) {
  auto trace = Job(GetParam()).run();
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 1) parameters.values[0] = summarize(Values{1, 2, 3, 4, 5, 6});
  expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), 1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("weight decay"), std::string::npos);
}

TEST_P(Updates, OfParametersThatWereChangedBetweenThemAreNotBlamed) {
  auto trace = Job(GetParam()).run();
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 1) parameters.values[0] = summarize(Values{1, 2, 3, 4, 5, 6});
  const auto change = [&](int rank) {
    auto values = *diagnose::replicas_by_step(diagnose::Run(trace)).at(0).at(0);
    values[0] = summarize(Values{7, 1, 1, 1, 1, 1});
    record(trace.ranks[rank], 1, trace::BeforeUpdate{true, values});
  };
  change(1);
  EXPECT_EQ(state(trace, "update-differs"), State::clean);
  EXPECT_EQ(state(trace, "replicas-diverged"), State::found);
  for (int rank = 0; rank < GetParam(); ++rank)
    if (rank != 1) change(rank);
  EXPECT_EQ(state(trace, "update-differs"), State::found) << "all were changed alike";
}

TEST_P(Updates, FewerOnOneRankWithAsManyBatchesAreNamed) {
  auto trace = Job(GetParam()).run();
  auto& events = trace.ranks[1].events;
  // It leaves out an update where values are not recorded.
  const auto left_out = std::find_if(events.begin(), events.end(), [](const trace::Event& event) {
    return event.step == 5 && event.is<trace::Update>();
  });
  ASSERT_NE(left_out, events.end());
  for (auto event = left_out; event != events.end(); ++event) --event->step;
  events.erase(left_out);
  expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), -2);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("some ranks made"),
            std::string::npos);
}

// The collectives go on in step, and rank 1 leaves out update 5.
TEST_P(Updates, ThatARankLeavesOutAreNamedByTheCollectivesBehindThem) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> events;
    std::int64_t made = 0, left_out = 0;
    for (auto event : rank.events) {
      const bool is_left_out =
          rank.participant.rank == 1 && event.is<trace::Update>() && event.step == 5;
      event.step -= left_out;
      if (event.is<trace::Update>()) {
        auto reduction = event;
        reduction.payload = call(++made, "w", "allreduce", -1, 9);
        reduction.left_ns = 1;
        events.push_back(reduction);
      }
      if (is_left_out)
        left_out = 1;
      else
        events.push_back(event);
    }
    rank.events = std::move(events);
  }
  expect_only(trace, "update-differs", {1}, 5);
  EXPECT_NE(evidence(trace).find("rank 1 left out an update"), std::string::npos)
      << evidence(trace);
}

TEST_P(Updates, WithoutAnEngineDifferOnceTheGradientIsOneOnAllRanks) {
  auto trace = without<trace::Engine>(Job(GetParam()).run());
  for (auto [step, update] : each<trace::Update>(trace.ranks[1])) update.lr = {0.2};
  // Each may update its own share of the parameters by a rate of its own, where they stay equal.
  const auto odd = odd_one_out(GetParam(), 1);
  expect_only(trace, "update-differs", odd, 0, diagnose::Severity::advice);
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    if (step >= 0) parameters.values[1] = summarize(Values{1, 2, static_cast<double>(step)});
  expect_only(trace, "update-differs", odd, 0);
}

TEST_P(Updates, OfRanksThatAreNoReplicasAreTheirOwnAffair) {
  auto trace = without<trace::Parameters>(
      without<trace::ReducedGradients>(without<trace::Engine>(Job(GetParam()).run())));
  for (auto [step, update] : each<trace::Update>(trace.ranks[1])) update.lr = {0.2};
  EXPECT_EQ(state(trace, "update-differs"), State::not_triggered);
}

TEST_P(Updates, OfRanksThatAverageTheirParametersByOtherRatesAreAdvice) {
  Job job(GetParam());
  job.reduce = job.has_engine = false;
  auto trace = job.run();
  EXPECT_EQ(state(trace, "update-differs"), State::not_triggered);
  for (auto& rank : trace.ranks)
    for (std::int64_t step = 1; step < 4; ++step)
      record(rank, step, trace::BeforeUpdate{true, summarize(draw_values(5, step, 5))});
  EXPECT_EQ(state(trace, "update-differs"), State::clean);
  for (auto [step, update] : each<trace::Update>(trace.ranks[1])) update.lr = {0.2};
  expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), 0, diagnose::Severity::advice);
}

}  // namespace
}  // namespace lockstep::simulated
