#include <gtest/gtest.h>
#include <lockstep/diagnose/detector.h>

#include <functional>

#include "batch_norm_job.h"
#include "expect.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

constexpr auto kInTrainMode = "evaluation-in-train-mode";

class EvaluationMode : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EvaluationMode, kOneToThree, testing::PrintToStringParamName());

bool in_training(int) {
  return true;
}

// A SyncBatchNorm that is in training mode at the start; all ranks evaluate before step 2, and tell.
BatchNormJob evaluating(int ranks) {
  BatchNormJob job(ranks);
  job.evaluation = WholeEvaluation{.telling = all_ranks(ranks)};
  return job;
}
BatchNormJob in_train_mode(int ranks) {
  auto job = evaluating(ranks);
  job.evaluation->training = in_training;
  return job;
}

void expect_silence(const BatchNormJob& job, State wanted = State::not_triggered) {
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), kInTrainMode), wanted);
}

TEST_P(EvaluationMode, ACorrectEvaluationIsLookedAtAndClean) {
  expect_silence(evaluating(GetParam()), State::clean);
}

TEST_P(EvaluationMode, OfTrainingIsNamedOnAllRanks) {
  expect_only(in_train_mode(GetParam()).run(), kInTrainMode, all_ranks(GetParam()), 2);
}

TEST_P(EvaluationMode, OfTrainingIsNamedOnAllRanksThoughOnlyTheFirstTells) {
  auto job = in_train_mode(GetParam());
  job.evaluation->telling = {0};
  expect_only(job.run(), kInTrainMode, all_ranks(GetParam()), 2);
}

TEST_P(EvaluationMode, OfTrainingIsNamedOnRanksWhoseBuffersWereRecorded) {
  auto trace = in_train_mode(GetParam()).run();
  std::erase_if(trace.ranks[0].events,
                [](const trace::Event& event) { return event.is<trace::Buffers>(); });
  const auto found = diagnose::detector_of(kInTrainMode)->verdict(diagnose::Run(trace)).findings;
  ASSERT_EQ(found.size(), GetParam() > 1 ? 1u : 0u);
  if (!found.empty()) EXPECT_EQ(found[0].ranks.front(), 1);
}

TEST_P(EvaluationMode, OfTrainingIsSeenOverStepsWhoseBuffersWereNotRecorded) {
  auto trace = in_train_mode(GetParam()).run();
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) {
      return event.is<trace::Buffers>() && event.step > 0 && event.step < 3;
    });
  expect_only(trace, kInTrainMode, all_ranks(GetParam()), 2);
}

TEST_P(EvaluationMode, OfTrainingOnOneRankIsThatRanks) {
  auto job = evaluating(GetParam());
  const int last = GetParam() - 1;
  job.evaluation->training = [last](int rank) { return rank == last; };
  const auto trace = job.run();
  ASSERT_EQ(state(trace, kInTrainMode), State::found);
  for (const auto& finding : diagnose::diagnose(trace).findings)
    if (finding.pitfall == kInTrainMode) EXPECT_EQ(finding.ranks, std::vector<int>{last});
}

// ---- what looks like it ----

TEST_P(EvaluationMode, StatisticsThatAreCollectedAnewBeforeAnEvaluationAreRight) {
  auto job = evaluating(GetParam());
  job.collects_anew = true;
  expect_silence(job, State::clean);
}

TEST_P(EvaluationMode, StatisticsThatAreCollectedAnewBeforeAnEvaluationThatNobodySeesAreRight) {
  auto job = evaluating(GetParam());
  job.collects_anew = true;
  job.evaluation->through_engine = false;
  expect_silence(job);
}

// The metric is of other samples than those that the last recorded pass drew.
TEST_P(EvaluationMode, StatisticsThatAreCollectedAnewBeforeAnUntoldEvaluationAreRight) {
  auto job = in_train_mode(GetParam());
  auto trace = job.run();
  for (auto [step, metric] : each<trace::Metric>(trace)) metric.count = 257;
  expect_nothing(trace);
}

TEST_P(EvaluationMode, AnEvaluationThatNobodySeesIsNotTheTrainingThatFollows) {
  auto job = evaluating(GetParam());
  job.evaluation->through_engine = false;
  expect_silence(job);
  job.evaluation->telling = {0};
  expect_silence(job);
}

TEST_P(EvaluationMode, ALossOfTrainingSamplesWithoutGradientsIsNoEvaluation) {
  auto job = in_train_mode(GetParam());
  job.evaluation->phase = "train";
  expect_silence(job);
}

TEST_P(EvaluationMode, AnEvaluationOfTheTrainingDataMovesNothingElsewhere) {
  auto job = in_train_mode(GetParam());
  job.evaluation->of_training_data = true;
  expect_silence(job, State::clean);
}

TEST_P(EvaluationMode, OfDataThatMayBeTheTrainingsIsNotJudged) {
  auto job = in_train_mode(GetParam());
  job.evaluation->of_training_data = true;
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (auto* set = event.change<trace::Dataset>()) set->content_as_set = 0;
  expect_nothing(trace);
  EXPECT_EQ(state(trace, kInTrainMode), State::not_triggered);
}

TEST_P(EvaluationMode, AForwardOfTrainingWhoseBackwardIsSkippedIsNoEvaluation) {
  auto job = evaluating(GetParam());
  job.forwards = 2;
  expect_silence(job, State::clean);
}

TEST_P(EvaluationMode, ALayerInEvaluationModeByItselfOrWithItsStatisticsPutBackIsRight) {
  auto job = in_train_mode(GetParam());
  job.evaluation->moves_statistics = false;
  expect_silence(job);
}

TEST_P(EvaluationMode, WithoutALayerThatKeepsStatisticsIsNotJudged) {
  auto job = in_train_mode(GetParam());
  job.tells_layer = false;
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    record(rank, -1, trace::Settings{trace::SettingsOf::model, {"0"}, {"Dropout(p=0.1)"}});
  expect_nothing(trace);
  EXPECT_EQ(state(trace, kInTrainMode), State::not_triggered);
}

TEST_P(EvaluationMode, NeedsWhatItLooksAt) {
  const auto trace = in_train_mode(GetParam()).run();
  for (const auto& lacking : {without<trace::LayerModes>(trace), without<trace::Buffers>(trace),
                              without<trace::Forward>(trace), without<trace::PassBegin>(trace),
                              without<trace::Samples>(trace), without<trace::Metric>(trace)})
    EXPECT_EQ(state(lacking, kInTrainMode), State::not_triggered);
}

TEST_P(EvaluationMode, CutAnywhereStaysClean) {
  for (const bool sees : {true, false}) {
    auto job = evaluating(GetParam());
    job.collects_anew = true;
    job.evaluation->through_engine = sees;
    const auto whole = job.run();
    for (std::size_t length = 0; length < whole.ranks[0].events.size(); ++length)
      ASSERT_TRUE(diagnose::diagnose(cut_at(whole, length)).findings.empty()) << length;
  }
}

// ---- training in evaluation mode ----

// Twelve updates, each after an evaluation and a forward that is in training mode where `trains`.
trace::Trace updates(int ranks, const std::function<bool(std::int64_t step)>& trains,
                     const std::string& layer = "Dropout2d(p=0.05, inplace=False)") {
  auto trace = empty_trace(ranks);
  for (auto& rank : trace.ranks) {
    record(rank, 0, trace::Settings{trace::SettingsOf::model, {"drop"}, {layer}});
    for (std::int64_t step = 0; step < 12; ++step) {
      record(rank, step, trace::Forward{false});
      record(rank, step, trace::Forward{trains(step)});
      record(rank, step, trace::Update{{0.1}});
    }
  }
  return trace;
}

TEST_P(EvaluationMode, ThatTheModelIsNeverSetBackFromIsNamed) {
  const auto slug = "training-in-evaluation-mode";
  const auto once = [](std::int64_t step) { return step < 4; };
  expect_only(updates(GetParam(), once), slug, all_ranks(GetParam()), 4,
              diagnose::Severity::advice);
  for (const auto& right : {updates(GetParam(), [](auto) { return true; }),
                            updates(GetParam(), [](auto) { return false; }),
                            updates(GetParam(), [](auto step) { return step % 6 < 4; }),
                            updates(GetParam(), once, "Dropout(p=0.0, inplace=False)"),
                            updates(GetParam(), once, "Linear(in_features=2, out_features=3)")}) {
    EXPECT_EQ(state(right, slug), State::clean);
  }
}

TEST_P(EvaluationMode, UnderTwoOptimizersIsNamed) {
  auto trace = updates(GetParam(), [](std::int64_t step) { return step < 8; });
  for (auto& rank : trace.ranks)  // the second one's updates
    std::erase_if(rank.events, [](const trace::Event& event) {
      return event.is<trace::Forward>() && event.step % 2 == 1;
    });
  EXPECT_EQ(state(trace, "training-in-evaluation-mode"), State::clean);
  auto longer = updates(GetParam(), [](std::int64_t step) { return step < 6; });
  for (auto& rank : longer.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) {
      return event.is<trace::Forward>() && event.step % 2 == 1;
    });
  expect_only(longer, "training-in-evaluation-mode", all_ranks(GetParam()), 6,
              diagnose::Severity::advice);
}

// The next pass, or another start, begins in training mode.
TEST_P(EvaluationMode, ThatIsSetBackLaterIsNamed) {
  auto trace = updates(GetParam(), [](std::int64_t step) { return step < 4 || step >= 8; });
  EXPECT_EQ(state(trace, "training-in-evaluation-mode"), State::clean);  // a phase of its own
  auto evaluated = trace;
  for (auto& rank : evaluated.ranks) {
    const auto first = std::ranges::find(rank.events, 4, &trace::Event::step);
    rank.events.insert(first, {0, 4, trace::EvaluationInput{8, 1}});
  }
  expect_only(evaluated, "training-in-evaluation-mode", all_ranks(GetParam()), 4,
              diagnose::Severity::advice);
  for (auto& rank : trace.ranks) {
    const auto second = std::find_if(rank.events.begin(), rank.events.end(),
                                     [](const trace::Event& event) { return event.step == 8; });
    rank.events.insert(second, {0, 7, trace::Engine{"distributed_data_parallel", 1}});
  }
  expect_only(trace, "training-in-evaluation-mode", all_ranks(GetParam()), 4,
              diagnose::Severity::advice);
}

// As where the training's forwards are captured, or compiled with the engine.
TEST_P(EvaluationMode, BetweenForwardsThatNobodySeesIsRight) {
  auto trace = updates(GetParam(), [](std::int64_t step) { return step < 4; });
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (event.is<trace::Forward>() && event.step % 2 == 1) event.payload = trace::Backward{1};
  EXPECT_EQ(state(trace, "training-in-evaluation-mode"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
