#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

class Gradient : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Gradient, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Gradient, KeptFromTheLastStepIsNamedAtTheSecondStep) {
  Job job(GetParam());
  job.zero_gradients = false;
  expect_only(job.run(), "gradients-not-zeroed", all_ranks(GetParam()), 1);
}

// It clears those that it has.
TEST_P(Gradient, KeptByAnOptimizerOfOtherParametersFollowsFromThat) {
  Job job(GetParam());
  job.zero_gradients = false;
  auto trace = job.run();
  const auto start = summarize(draw_values(7, 0, 0));
  for (auto [step, parameters] : each<trace::Parameters>(trace)) parameters.values = start;
  expect_only(trace, "optimizer-built-on-other-parameters", all_ranks(GetParam()), 0);
}

TEST(GradientOfOneRank, KeptFromTheLastStepIsNamed) {
  Job job(1);
  job.zero_gradients = false;
  expect_only(job.run(), "gradients-not-zeroed", {0}, 1);
}

TEST_P(Gradient, AccumulatedOverSeveralBackwardsIsRight) {
  Job job(GetParam());
  job.backwards = 4;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "gradients-not-zeroed"), State::clean);
  EXPECT_EQ(state(job.run(), "double-average"), State::clean);
}

TEST_P(Gradient, KeptNeedsTwoConsecutiveSteps) {
  Job job(GetParam());
  job.zero_gradients = false;
  job.recorded_steps = 1;
  EXPECT_EQ(state(job.run(), "gradients-not-zeroed"), State::not_triggered);
  EXPECT_EQ(state(without<trace::LocalGradients>(Job(GetParam()).run()), "gradients-not-zeroed"),
            State::not_triggered);
}

TEST_P(Gradient, KeptCannotBeToldAcrossAGap) {
  Job job(GetParam());
  job.zero_gradients = false;
  auto trace = job.run();
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) {
      return event.is<trace::ReducedGradients>() && event.step % 2 == 1;
    });
  EXPECT_EQ(state(trace, "gradients-not-zeroed"), State::not_triggered);
}

TEST_P(Gradient, AfterAStepWithoutAnyIsRight) {
  auto trace = Job(GetParam()).run();
  const auto zero = summarize(std::vector<Values>{Values(6, 0.0), Values(3, 0.0)});
  for (auto [step, local] : each<trace::LocalGradients>(trace))
    if (step == 1) local.values = zero;
  for (auto [step, reduced] : each<trace::ReducedGradients>(trace))
    if (step == 1) reduced.values = zero;
  EXPECT_EQ(state(trace, "gradients-not-zeroed"), State::clean);
}

TEST_P(Gradient, SummedAndNotDividedIsNamed) {
  Job job(GetParam());
  job.reduced_times = GetParam();
  expect_only(job.run(), "sum-not-mean", all_ranks(GetParam()), 0);
}

TEST_P(Gradient, SumOfADividedLossIsRight) {
  Job job(GetParam());
  job.reduced_times = GetParam();
  job.loss_times = 1.0 / GetParam();
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "sum-not-mean"), State::clean);
}

TEST_P(Gradient, LossDividedBeforeAMeanOrMeanDividedAgainIsNamed) {
  for (const auto times : {&Job::loss_times, &Job::reduced_times}) {
    Job job(GetParam());
    job.*times = 1.0 / GetParam();
    expect_only(job.run(), "double-average", all_ranks(GetParam()), 0);
  }
}

TEST_P(Gradient, AccumulationInADividedLossIsStillNamed) {
  Job job(GetParam());
  job.backwards = 2;
  job.loss_times = 1.0 / GetParam();
  expect_only(job.run(), "double-average", all_ranks(GetParam()), 0);
}

TEST_P(Gradient, ScaleNeedsADeclaredMeanAndLosses) {
  Job job(GetParam());
  job.reduced_times = GetParam();
  EXPECT_EQ(state(without<trace::Loss>(job.run()), "sum-not-mean"), State::not_triggered);
  job.declares_mean = false;
  EXPECT_EQ(state(job.run(), "sum-not-mean"), State::not_triggered);
  EXPECT_EQ(state(job.run(), "double-average"), State::not_triggered);
}

TEST(GradientOfOneRank, HasNoReductionToGetWrong) {
  EXPECT_EQ(state(Job(1).run(), "sum-not-mean"), State::not_applicable);
  EXPECT_EQ(state(Job(1).run(), "double-average"), State::not_applicable);
}

// Clipping takes away another part in each step.
TEST_P(Gradient, ClippedIsNoFinding) {
  auto trace = Job(GetParam()).run();
  for (auto [step, reduced] : each<trace::ReducedGradients>(trace))
    for (auto& value : reduced.values) {
      const double factor = 1.0 / static_cast<double>(2 + step);
      value.norm *= factor;
      for (auto& projection : value.sketch) projection *= factor;
    }
  expect_nothing(trace);
}

TEST_P(Gradient, OfOneOtherMultipleInAllStepsIsAdvisedAgainst) {
  Job job(GetParam());
  job.reduced_times = 0.3;
  expect_only(job.run(), "gradient-not-the-mean", all_ranks(GetParam()), 0, Severity::advice);
  // Clipped by a factor that happens to stay the same, and said so.
  auto clipped = job.run();
  for (auto& rank : clipped.ranks) record(rank, 0, trace::Clip{1.0, 0.5, {}});
  expect_nothing(clipped);
}

trace::Trace divided_twice(int world_size) {
  Job job(world_size);
  job.loss_times = 1.0 / world_size;
  return job.run();
}

// To so many times the norm that the clipping meets; what is left of the gradient is another part in each step.
trace::Trace clipped(trace::Trace trace, double allowed) {
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> events;
    for (auto& event : rank.events) {
      if (auto* reduced = event.change<trace::ReducedGradients>()) {
        const double met = 2.0 + static_cast<double>(event.step);
        events.push_back(
            {event.time_ns, event.step, trace::Clip{allowed * met, met, reduced->values}});
        for (auto& value : reduced->values) {
          value.norm /= met;
          for (auto& projection : value.sketch) projection /= met;
        }
      }
      events.push_back(event);
    }
    rank.events = std::move(events);
  }
  return trace;
}

TEST_P(Gradient, DividedTwiceIsNamedThoughItIsClipped) {
  // The norm that was met is below what is allowed for, and W times that is above.
  expect_only(clipped(divided_twice(GetParam()), 1.5), "double-average", all_ranks(GetParam()), 0);
}

TEST_P(Gradient, DividedTwiceIsAdviceWhereClippingMakesItTheSame) {
  expect_only(clipped(divided_twice(GetParam()), 0.5), "double-average", all_ranks(GetParam()), 0,
              Severity::advice);
}

TEST_P(Gradient, OfALossThatIsSummedOverTheSamplesIsNamed) {
  Job job(GetParam());
  job.loss_times = static_cast<double>(job.batch);
  if (job.batch != GetParam()) expect_only(job.run(), "sum-not-mean", all_ranks(GetParam()), 0);
}

TEST_P(Gradient, NotZeroedIsNamedThoughItIsClipped) {
  Job job(GetParam());
  job.zero_gradients = false;
  auto trace = job.run();
  for (auto [step, reduced] : each<trace::ReducedGradients>(trace))
    if (step == 1)
      for (auto& value : reduced.values) {
        value.norm /= 2;
        for (auto& projection : value.sketch) projection /= 2;
      }
  EXPECT_EQ(state(trace, "gradients-not-zeroed"), State::found);
}

// The gradient of one step is another one on those ranks.
trace::Trace with_other_gradient(trace::Trace trace, const std::vector<int>& ranks) {
  for (const int r : ranks)
    for (auto [step, reduced] :
         each<trace::ReducedGradients>(trace.ranks[static_cast<std::size_t>(r)]))
      if (step == 2) reduced.values = summarize(draw_values(99, 0, 0));
  return trace;
}

TEST_P(Gradient, NoMultipleOfTheMeanIsAdviceWhereAllRanksHaveTheSame) {
  expect_only(with_other_gradient(Job(GetParam()).run(), all_ranks(GetParam())),
              "gradient-not-the-mean", all_ranks(GetParam()), 2, diagnose::Severity::advice);
}

TEST_P(Gradient, NoMultipleOfTheMeanIsWrongWhereRanksDiffer) {
  const auto trace = without<trace::Parameters>(with_other_gradient(Job(GetParam()).run(), {1}));
  expect_only(trace, "gradient-not-the-mean", all_ranks(GetParam()), 2);
}

TEST_P(Gradient, NoMultipleOfTheMeanIsToldWithItsRankAndParameter) {
  Job job(GetParam());
  job.layers = 2;
  auto trace = without<trace::Parameters>(job.run());
  for (auto [step, reduced] : each<trace::ReducedGradients>(trace.ranks[1]))
    if (step == 2) reduced.values[2] = summarize(draw_values(99, 0, 0))[0];
  EXPECT_THAT(diagnose::diagnose(trace).findings.at(0).evidence,
              testing::AllOf(testing::StartsWith("the reduced gradient of rank 1 lies "),
                             testing::HasSubstr(", in 1 of 4 parameters, first in parameter 2 (")));
}

TEST_P(Gradient, OfAStepThatIsLeftOutIsNotCompared) {
  auto trace = with_other_gradient(Job(GetParam()).run(), all_ranks(GetParam()));
  for (auto& rank : trace.ranks)
    for (std::size_t i = 0; i < rank.events.size(); ++i)
      if (rank.events[i].step == 2 && rank.events[i].is<trace::ReducedGradients>())
        rank.events.insert(rank.events.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                           {rank.events[i].time_ns, 2, trace::ScaledStep{1024, true, false}});
  expect_nothing(trace);
}

// The last rank adds as another dtype, in that step.
trace::Trace with_other_dtype(trace::Trace trace, std::int64_t step) {
  for (auto& rank : trace.ranks) {
    auto sum = call(1, "mixed up", "allreduce", -1, 8);
    if (&rank == &trace.ranks.back()) sum.dtype = "int";
    record(rank, step, sum);
  }
  return trace;
}

TEST_P(Gradient, ThatIsNoMeanIsAccountedForByWhatWasMixedUpBefore) {
  const auto trace = with_other_gradient(Job(GetParam()).run(), all_ranks(GetParam()));
  const auto names = [](const trace::Trace& of) {
    std::vector<std::string> all;
    for (const auto& finding : diagnose::diagnose(of).findings) all.push_back(finding.pitfall);
    return all;
  };
  EXPECT_EQ(names(with_other_dtype(trace, 2)), std::vector<std::string>{"dtype-mismatch"});
  EXPECT_EQ(names(with_other_dtype(trace, 3)),
            (std::vector<std::string>{"dtype-mismatch", "gradient-not-the-mean"}));
}

// As where each rank's optimizer holds a part of the parameters and gathers the rest.
TEST_P(Gradient, ThatDiffersIsAdviceWhereTheReplicasStayEqual) {
  expect_only(with_other_gradient(Job(GetParam()).run(), {1}), "gradient-not-the-mean",
              all_ranks(GetParam()), 2, diagnose::Severity::advice);
}

TEST_P(Gradient, ThatIsNeverAveragedIsAdviceWhereOwnersSendTheirParameters) {
  Job job(GetParam());
  job.reduce = false;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    const auto of_first = each<trace::Parameters>(trace.ranks[0]);
    const auto own = each<trace::Parameters>(rank);
    for (std::size_t i = 0; i < own.size(); ++i) own[i].second.values = of_first[i].second.values;
    for (std::int64_t step = 0; step < 4; ++step) {
      record(rank, step, call(2 * step + 1, "0", "broadcast", 0, 6));
      record(rank, step, call(2 * step + 2, "0", "broadcast", 1, 3));
    }
    record(rank, 7, call(100, "0", "allreduce", -1, 1'000));  // between updates, for something else
  }
  expect_only(trace, "gradient-not-the-mean", all_ranks(GetParam()), 0, diagnose::Severity::advice);
}

TEST_P(Gradient, MeanWeightedBySamplesIsRight) {
  auto trace = empty_trace(GetParam());
  Values weight(6, 0.0), bias(3, 0.0);
  double samples = 0;
  for (int r = 0; r < GetParam(); ++r) {
    const auto local = draw_values(1, r, 0);
    record(trace.ranks[r], 0, trace::LocalGradients{r + 1, summarize(local)});
    for (std::size_t i = 0; i < 6; ++i) weight[i] += (r + 1) * local[0][i];
    for (std::size_t i = 0; i < 3; ++i) bias[i] += (r + 1) * local[1][i];
    samples += r + 1;
  }
  for (auto* tensor : {&weight, &bias})
    for (auto& value : *tensor) value /= samples;
  for (auto& rank : trace.ranks)
    record(rank, 0, trace::ReducedGradients{summarize(std::vector<Values>{weight, bias})});
  EXPECT_EQ(state(trace, "gradient-not-the-mean"), State::clean);
}

// As of an outer optimizer, which keeps its gradient from one of its own steps to the next.
TEST_P(Gradient, OfAParameterThatNoBackwardReachedIsLeftOut) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks)
    for (auto [step, local] : each<trace::LocalGradients>(rank)) local.values.back() = {};
  EXPECT_EQ(state(trace, "gradient-not-the-mean"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
