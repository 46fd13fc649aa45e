#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "batch_norm_job.h"
#include "expect.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;
using Equalize = BatchNormJob::Equalize;
using Mean = BatchNormJob::Mean;

const std::vector<std::string> kSlugs{"local-batch-norm",       "unequal-counts-in-sync",
                                      "buffers-not-synced",     "buffer-sync-inside-backward",
                                      "sync-bn-after-wrapping", "train-mode-differs-across-ranks"};

class BatchNorm : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, BatchNorm, kTwoAndThree, testing::PrintToStringParamName());

// Plain BatchNorm under DDP's defaults: each rank its own batch, rank 0's buffers before every forward.
BatchNormJob plain(int ranks) {
  BatchNormJob job(ranks);
  job.mean = Mean::of_own_values;
  job.equalize = Equalize::every_forward;
  return job;
}

// The findings that are violations must be this one alone; advice about BatchNorm may stand beside it.
void expect_violation(const trace::Trace& trace, const std::string& slug,
                      const std::vector<int>& ranks, std::int64_t step) {
  std::vector<diagnose::Finding> violations;
  for (const auto& finding : diagnose::diagnose(trace).findings)
    if (finding.severity == Severity::violation) violations.push_back(finding);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].pitfall, slug);
  EXPECT_EQ(violations[0].ranks, ranks);
  EXPECT_EQ(violations[0].step, step);
}

TEST_P(BatchNorm, ThatSynchronisesIsCleanAndWasLookedAt) {
  const auto trace = BatchNormJob(GetParam()).run();
  expect_nothing(trace);
  for (const auto& slug : kSlugs) EXPECT_EQ(state(trace, slug), State::clean) << slug;
}

TEST_P(BatchNorm, OnLocalBatchesIsAdvice) {
  const auto trace = plain(GetParam()).run();
  expect_only(trace, "local-batch-norm", all_ranks(GetParam()), 0, Severity::advice);
  EXPECT_THAT(evidence(trace), testing::HasSubstr("have moved buffer 0 (\"running_mean\")"));
}

// As where another model was recorded before.
TEST_P(BatchNorm, OnLocalBatchesIsToldByTheNamesOfItsOwnStep) {
  auto trace = plain(GetParam()).run();
  for (auto& rank : trace.ranks) each<trace::Buffers>(rank).front().second.names = {"of_another"};
  EXPECT_THAT(evidence(trace), testing::HasSubstr("have moved buffer 0 (\"running_mean\")"));
}

TEST_P(BatchNorm, OnLocalBatchesIsToldBehindWhatRightProgramsDoNotHave) {
  auto trace = plain(GetParam()).run();
  for (auto& rank : trace.ranks) record(rank, 11, trace::Untrained{{{{8, 4}, 0}}});
  std::vector<std::string> slugs;
  for (const auto& finding : diagnose::diagnose(trace).findings) slugs.push_back(finding.pitfall);
  EXPECT_EQ(slugs, (std::vector<std::string>{"parameters-not-updated", "local-batch-norm"}));
}

TEST_P(BatchNorm, ThatIsFrozenLooksAtNoBatch) {
  auto job = plain(GetParam());
  job.frozen = true;
  expect_nothing(job.run());
}

// The BatchNorm is in this mode at the start.
trace::Trace with_layer(trace::Trace trace, bool training) {
  for (auto& rank : trace.ranks) record(rank, -1, trace::LayerModes{{{0, 1, training}}});
  return trace;
}

TEST_P(BatchNorm, WhoseStatisticsStayAsTheyWereInTrainingModeIsNamed) {
  const auto moves = with_layer(BatchNormJob(GetParam()).run(), true);
  expect_nothing(moves);
  EXPECT_EQ(state(moves, "replica-buffers-lost"), State::clean);
  auto job = plain(GetParam());
  job.frozen = true;
  expect_only(with_layer(job.run(), true), "replica-buffers-lost", all_ranks(GetParam()), 0);
  expect_nothing(with_layer(job.run(), false));
}

// As a head that this rank's task does not use: its weight moves by what others reduce.
TEST_P(BatchNorm, ThatARankNeverRunsIsNoFinding) {
  auto job = plain(GetParam());
  job.frozen = true;
  auto trace = with_layer(job.run(), true);
  for (auto [step, gradients] : each<trace::LocalGradients>(trace)) gradients.values[1] = {};
  EXPECT_NE(state(trace, "replica-buffers-lost"), State::found);
}

TEST_P(BatchNorm, WhoseStatisticsArePutBackBeforeAnEvaluationIsNamed) {
  auto trace = with_layer(BatchNormJob(GetParam()).run(), true);
  for (auto& rank : trace.ranks) {
    const auto buffers = each<trace::Buffers>(rank);
    buffers.back().second.values = buffers.front().second.values;
  }
  EXPECT_EQ(state(trace, "replica-buffers-lost"), State::found);
  EXPECT_EQ(diagnose::diagnose(trace).findings.at(0).step, 4);
}

TEST_P(BatchNorm, BuffersThatWereNeverEqualAreNobodysStatistics) {
  auto job = plain(GetParam());
  job.equalize = Equalize::never;
  job.equal_start = false;
  expect_nothing(job.run());
}

TEST_P(BatchNorm, OfReplicasThatAreApartSaysNothing) {
  auto trace = plain(GetParam()).run();
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    parameters.values = summarize(draw_values(9, 9, step));
  EXPECT_EQ(state(trace, "local-batch-norm"), State::clean);
}

// A Python model that no engine has wrapped: its statistics are recorded as what is beside it, after updates.
trace::Trace unwrapped(trace::Trace trace) {
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (const auto* buffers = event.as<trace::Buffers>(); buffers && event.step >= 0)
        event.payload =
            trace::OutsideParameters{"statistics of the model", buffers->names, buffers->values};
  return without<trace::Engine>(without<trace::Buffers>(std::move(trace)));
}

TEST_P(BatchNorm,
       OfAModelThatNobodyWrappedIsAdviceBesideReplicasThatAreEqualUntilTheyAreEvaluated) {
  auto job = plain(GetParam());
  job.equalize = Equalize::never;
  const auto trace = unwrapped(job.run());
  expect_violation(trace, "buffers-not-synced", all_ranks(GetParam()), job.steps);
  expect_only(without<trace::Forward>(trace), "local-batch-norm", all_ranks(GetParam()), -2,
              Severity::advice);
  expect_nothing(unwrapped(BatchNormJob(GetParam()).run()));
}

TEST_P(BatchNorm, OfReplicasThatAreAveragedWithTheirStatisticsSaysNothing) {
  auto job = plain(GetParam());
  job.equalize = Equalize::never;
  auto trace = unwrapped(job.run());
  const auto last = each<trace::Parameters>(trace.ranks[0]).back().first;
  const auto statistics = each<trace::OutsideParameters>(trace.ranks[0]).back().second.values;
  for (auto& rank : trace.ranks)
    for (auto [step, beside] : each<trace::OutsideParameters>(rank))
      if (step == last) beside.values = statistics;
  EXPECT_EQ(state(trace, "local-batch-norm"), State::clean);
}

TEST_P(BatchNorm, MeansOfRanksMeansOverUnequalCountsAreNamed) {
  BatchNormJob job(GetParam());
  job.mean = Mean::of_ranks_means;
  expect_only(job.run(), "unequal-counts-in-sync", all_ranks(GetParam()), 0);
}

TEST_P(BatchNorm, MeansOfRanksMeansOverEqualCountsAreRight) {
  BatchNormJob job(GetParam());
  job.mean = Mean::of_ranks_means;
  job.counts.back() = job.counts.front();
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "unequal-counts-in-sync"), State::not_applicable);
}

TEST_P(BatchNorm, BuffersThatNobodyEqualizesAreNamedWhereTheyAreEvaluated) {
  auto job = plain(GetParam());
  job.equalize = Equalize::never;
  expect_violation(job.run(), "buffers-not-synced", all_ranks(GetParam()), job.steps);
  auto of_module = job.run();  // called without its wrapper
  for (auto& rank : of_module.ranks)
    for (auto& event : rank.events)
      if (const auto* forward = event.as<trace::Forward>(); forward && !forward->training)
        event.payload = trace::EvaluationInput{4, 0};
  const auto diagnosis = diagnose::diagnose(of_module);
  const auto told =
      std::ranges::find(diagnosis.findings, "buffers-not-synced", &diagnose::Finding::pitfall);
  ASSERT_NE(told, diagnosis.findings.end());
  EXPECT_EQ(told->severity, Severity::advice);
  EXPECT_EQ(told->step, job.steps);
  // It hides no advice about another equation: here each rank is given other samples.
  for (std::size_t r = 0; r < of_module.ranks.size(); ++r)
    for (auto& event : of_module.ranks[r].events)
      if (event.is<trace::EvaluationInput>()) event.payload = trace::EvaluationInput{4, r};
  const auto of_parts = diagnose::diagnose(of_module);
  for (const auto* slug : {"buffers-not-synced", "evaluation-not-reduced"})
    EXPECT_EQ(std::ranges::count(of_parts.findings, slug, &diagnose::Finding::pitfall), 1) << slug;
}

TEST_P(BatchNorm, BuffersThatDifferFromTheStartAreLeftOpen) {
  for (const bool equal : {true, false}) {
    BatchNormJob job(GetParam());
    job.equal_start = equal;
    job.tells_layer = false;
    job.frozen = true;
    const auto diagnosis = diagnose::diagnose(job.run());
    const auto& line = diagnosis.ledger.at(static_cast<std::size_t>(diagnose::Equation::buffers));
    EXPECT_EQ(line.reason.find("(\"running_mean\") of equal replicas differs by rank") ==
                  std::string::npos,
              equal)
        << line.reason;
  }
}

TEST_P(BatchNorm, BuffersThatAreEqualizedInTimeAreRight) {
  auto job = plain(GetParam());
  job.equalize = Equalize::before_evaluation;
  expect_only(job.run(), "local-batch-norm", all_ranks(GetParam()), 0, Severity::advice);
  EXPECT_EQ(state(job.run(), "buffers-not-synced"), State::clean);
}

TEST_P(BatchNorm, EvaluatedOnOneRankHasOneSetOfBuffers) {
  auto job = plain(GetParam());
  job.equalize = Equalize::never;
  job.evaluating = {0};
  EXPECT_EQ(state(job.run(), "buffers-not-synced"), State::not_triggered);
}

TEST_P(BatchNorm, RankZeroInEvaluationModeIsNamedAtItsFirstUpdate) {
  auto job = plain(GetParam());
  job.training = [](int rank, int step) { return rank != 0 || step < 2; };
  expect_violation(job.run(), "train-mode-differs-across-ranks", odd_one_out(GetParam(), 0), 2);
}

TEST_P(BatchNorm, EvaluationModeOnAllRanksIsAChoice) {
  BatchNormJob job(GetParam());
  job.training = [](int, int step) { return step < 2; };
  expect_nothing(job.run());
}

TEST_P(BatchNorm, ALookAtTheTestSetBetweenUpdatesIsNoModeOfTraining) {
  BatchNormJob job(GetParam());
  job.look_before = {1, 3};
  expect_nothing(job.run());
}

TEST_P(BatchNorm, ABroadcastBetweenForwardAndBackwardThatEndsTheRunIsNamed) {
  auto job = plain(GetParam());
  job.forwards = 2;
  job.dies_in = 0;
  expect_only(job.run(), "buffer-sync-inside-backward", all_ranks(GetParam()), 0);
}

TEST_P(BatchNorm, TheSameBroadcastInAStepThatEndedDoesNoHarm) {
  auto job = plain(GetParam());
  job.forwards = 2;
  EXPECT_EQ(state(job.run(), "buffer-sync-inside-backward"), State::clean);
  job.dies_in = 2;  // of something else: two steps like it went well
  EXPECT_EQ(state(job.run(), "buffer-sync-inside-backward"), State::clean);
}

TEST_P(BatchNorm, TwoForwardsThatBroadcastNothingOrHaveABackwardEachAreNotIt) {
  BatchNormJob synchronised(GetParam());
  auto job = plain(GetParam());
  job.backward_in_between = true;
  for (auto* right : {&synchronised, &job}) {
    right->forwards = 2;
    right->dies_in = 0;
    expect_nothing(right->run());
  }
}

TEST_P(BatchNorm, ALayerThatTheEngineDoesNotHoldIsNamed) {
  BatchNormJob job(GetParam());
  job.reduces_layer = false;
  expect_only(job.run(), "sync-bn-after-wrapping", all_ranks(GetParam()), 0);
}

TEST_P(BatchNorm, ALayerThatGathersNothingIsSomethingElse) {
  auto job = plain(GetParam());
  job.reduces_layer = false;
  EXPECT_EQ(state(job.run(), "sync-bn-after-wrapping"), State::clean);
}

TEST_P(BatchNorm, NeedsWhatItLooksAt) {
  const auto trace = BatchNormJob(GetParam()).run();
  const auto blind = [&](const trace::Trace& lacking, const std::string& slug) {
    EXPECT_EQ(state(lacking, slug), State::not_triggered) << slug;
  };
  blind(without<trace::Buffers>(trace), "local-batch-norm");
  blind(without<trace::Buffers>(trace), "buffers-not-synced");
  blind(without<trace::Buffers>(trace), "buffer-sync-inside-backward");
  blind(without<trace::Parameters>(trace), "local-batch-norm");
  blind(without<trace::Average>(trace), "unequal-counts-in-sync");
  blind(without<trace::Forward>(trace), "train-mode-differs-across-ranks");
  blind(without<trace::Forward>(trace), "buffers-not-synced");
  blind(without<trace::Engine>(trace), "sync-bn-after-wrapping");
  blind(without<trace::LocalGradients>(trace), "sync-bn-after-wrapping");
}

// A run killed after any event: never a finding that the whole run does not have.
TEST_P(BatchNorm, CutAnywhereStaysClean) {
  const auto whole = BatchNormJob(GetParam()).run();
  for (std::size_t length = 0; length < whole.ranks[0].events.size(); ++length) {
    const auto cut = cut_at(whole, length);
    ASSERT_TRUE(diagnose::diagnose(cut).findings.empty())
        << length << ": " << diagnose::diagnose(cut).findings[0].pitfall;
  }
}

TEST(BatchNormOfOneRank, HasNobodyToDifferFrom) {
  const auto trace = BatchNormJob(1).run();
  for (const auto& slug : kSlugs) EXPECT_EQ(state(trace, slug), State::not_applicable) << slug;
}

}  // namespace
}  // namespace lockstep::simulated
