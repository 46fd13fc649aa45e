#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

class LearningRate : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LearningRate, kTwoToFour, testing::PrintToStringParamName());

// The trace with every event of kind T changed.
template <class T>
trace::Trace changed(trace::Trace trace, const std::function<void(std::int64_t step, T&)>& change) {
  for (auto [step, payload] : each<T>(trace)) change(step, payload);
  return trace;
}

Job declaring(int world_size, double reference) {
  Job job(world_size);
  job.reference_lr = reference;
  return job;
}

// The first update goes somewhere else than along the gradient, on all ranks alike.
trace::Trace normalised(trace::Trace trace) {
  return changed<trace::Parameters>(std::move(trace), [](auto step, auto& parameters) {
    if (step == 0) parameters.values = summarize(draw_values(99, 0, 0));
  });
}

// The loss of every step but the first is `times` as large.
trace::Trace rising(trace::Trace trace, double times) {
  return changed<trace::Loss>(std::move(trace), [&](auto step, auto& loss) {
    if (step == 0) return;
    loss.sum *= times;
    loss.backward_value *= times;
  });
}

TEST_P(LearningRate, OfOneRankOnSeveralIsAdvisedAgainst) {
  expect_only(declaring(GetParam(), 0.1).run(), "lr-not-scaled", all_ranks(GetParam()), 0,
              Severity::advice);
}

TEST_P(LearningRate, OfARunOnAsManyRanksIsRight) {
  auto job = declaring(GetParam(), 0.1);
  job.reference_world_size = GetParam();
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "lr-not-scaled"), State::not_applicable);
}

TEST_P(LearningRate, ScaledByTheLinearRuleIsRight) {
  const auto trace = declaring(GetParam(), 0.1 / GetParam()).run();
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "lr-not-scaled"), State::clean);
  EXPECT_EQ(state(trace, "linear-rule-with-adam"), State::not_applicable);
  EXPECT_EQ(state(trace, "no-warmup"), State::clean);
}

TEST_P(LearningRate, ReachedAfterAWarmUpIsStillTooSmall) {
  const auto warmed = [](auto step, trace::Update& update) {
    if (step < 3) update.lr = {0.01};
  };
  expect_only(changed<trace::Update>(declaring(GetParam(), 0.1).run(), warmed), "lr-not-scaled",
              all_ranks(GetParam()), 0, Severity::advice);
  expect_nothing(changed<trace::Update>(declaring(GetParam(), 0.1 / GetParam()).run(), warmed));
}

TEST_P(LearningRate, ThatTheLossIsSummedForIsRight) {
  auto job = declaring(GetParam(), 0.1);
  job.loss_times = GetParam();
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "lr-not-scaled"), State::clean);
}

TEST_P(LearningRate, OfAClippedGradientIsJudgedAsItIs) {
  auto job = declaring(GetParam(), 0.1 / GetParam());
  job.reduced_times = 1.0 / GetParam() / GetParam();
  EXPECT_EQ(state(job.run(), "lr-not-scaled"), State::clean);
}

TEST_P(LearningRate, ScaledByTheLinearRuleUnderAdamIsAdvisedAgainst) {
  expect_only(normalised(declaring(GetParam(), 0.1 / GetParam()).run()), "linear-rule-with-adam",
              all_ranks(GetParam()), 0, Severity::advice);
}

TEST_P(LearningRate, ScaledByTheRootOrNotAtAllUnderAdamIsRight) {
  expect_nothing(normalised(declaring(GetParam(), 0.1 / std::sqrt(GetParam())).run()));
  const auto unscaled = normalised(declaring(GetParam(), 0.1).run());
  expect_nothing(unscaled);
  EXPECT_EQ(state(unscaled, "lr-not-scaled"), State::not_applicable);
}

// W * W batches an update: W is their root, though it looks like the linear rule.
TEST_P(LearningRate, ScaledByTheRootOfAccumulatedBatchesIsRight) {
  auto trace = normalised(declaring(GetParam(), 0.1 / GetParam()).run());
  trace = changed<trace::LocalGradients>(std::move(trace),
                                         [&](auto, auto& local) { local.samples *= GetParam(); });
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "linear-rule-with-adam"), State::clean);
}

TEST_P(LearningRate, UnderWeightDecayFollowsTheGradientStill) {
  auto after = draw_values(7, 0, 0);
  const auto before = after;
  for (std::size_t t = 0; t < after.size(); ++t)
    for (std::size_t i = 0; i < after[t].size(); ++i) {
      double gradient = 0.3 * before[t][i];
      for (int rank = 0; rank < GetParam(); ++rank)
        gradient += draw_values(1, rank, 0)[t][i] / GetParam();
      after[t][i] -= 0.1 * gradient;
    }
  const auto trace = changed<trace::Parameters>(declaring(GetParam(), 0.1 / GetParam()).run(),
                                                [&](auto step, auto& parameters) {
                                                  if (step == 0)
                                                    parameters.values = summarize(after);
                                                });
  EXPECT_EQ(state(trace, "linear-rule-with-adam"), State::not_applicable);
}

TEST_P(LearningRate, WholeFromTheFirstUpdateOnIsNamedWhereTheLossRises) {
  const auto job = declaring(GetParam(), 0.1 / GetParam());
  expect_only(rising(job.run(), 1.5), "no-warmup", all_ranks(GetParam()), 1);
  expect_nothing(rising(job.run(), 1.1));
}

// Losses of other samples in every step: relative noise of 20 % on the mean over the ranks.
trace::Trace noisy(trace::Trace trace, unsigned seed) {
  return changed<trace::Loss>(std::move(trace), [&](auto step, auto& loss) {
    std::mt19937_64 generator(1000 * seed + static_cast<unsigned>(step));
    const double times = std::exp(0.2 * std::normal_distribution<double>()(generator));
    loss.sum *= times;
    loss.backward_value *= times;
  });
}

// As by default: the first four steps alone.
trace::Trace with_four_losses(trace::Trace trace) {
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const trace::Event& event) {
      return event.step >= 4 && event.is<trace::Loss>();
    });
  return trace;
}

trace::Trace of_the_same_samples(trace::Trace trace) {
  return changed<trace::Samples>(std::move(trace), [](auto, auto& samples) {
    if (samples.phase == "train") samples.ids = {1, 2, 3, 4};
  });
}

TEST_P(LearningRate, WholeFromTheFirstUpdateOnIsRightWhereTheLossIsNoisy) {
  const auto trace = declaring(GetParam(), 0.1 / GetParam()).run();
  const auto few = with_four_losses(trace);
  for (unsigned seed = 0; seed < 2000; ++seed) {
    EXPECT_EQ(state(noisy(trace, seed), "no-warmup"), State::clean) << seed;
    EXPECT_NE(state(noisy(few, seed), "no-warmup"), State::found) << seed;
  }
}

TEST_P(LearningRate, WholeFromTheFirstUpdateOnIsNamedWhereANoisyLossRisesToSeveralTimes) {
  const auto trace = declaring(GetParam(), 0.1 / GetParam()).run();
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto jumps = noisy(rising(trace, 12), seed);
    EXPECT_EQ(state(jumps, "no-warmup"), State::found) << seed;
    EXPECT_EQ(state(with_four_losses(jumps), "no-warmup"), State::found) << seed;
  }
}

// Then the rise is the step's doing.
TEST_P(LearningRate, WholeFromTheFirstUpdateOnIsNamedWhereTheLossOfTheSameSamplesRises) {
  const auto trace = with_four_losses(rising(declaring(GetParam(), 0.1 / GetParam()).run(), 1.5));
  EXPECT_EQ(state(of_the_same_samples(trace), "no-warmup"), State::found);
  EXPECT_EQ(state(trace, "no-warmup"), State::not_triggered);
}

TEST_P(LearningRate, WholeFromTheFirstUpdateOnIsNotCalledCleanBeforeItsFirstStepsWereSeen) {
  const auto trace = with_four_losses(declaring(GetParam(), 0.1 / GetParam()).run());
  EXPECT_EQ(state(trace, "no-warmup"), State::not_triggered);
  const auto warmed = changed<trace::Update>(trace, [](auto step, trace::Update& update) {
    if (step < 3) update.lr = {0.01};
  });
  EXPECT_EQ(state(warmed, "no-warmup"), State::clean);
}

TEST_P(LearningRate, OfAWarmUpIsNotBlamedForALossThatRises) {
  const auto trace = changed<trace::Update>(declaring(GetParam(), 0.1 / GetParam()).run(),
                                            [](auto step, trace::Update& update) {
                                              if (step < 3) update.lr = {0.01};
                                            });
  expect_nothing(rising(trace, 1.5));
}

TEST_P(LearningRate, NeedsWhatItIsComparedWith) {
  const auto trace = declaring(GetParam(), 0.1).run();
  for (const auto* slug : {"lr-not-scaled", "linear-rule-with-adam", "no-warmup"}) {
    EXPECT_EQ(state(without<trace::Intent>(trace), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::Update>(trace), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::Loss>(trace), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::LocalGradients>(trace), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(declaring(1, 0.1).run(), slug), State::not_applicable) << slug;
  }
  const auto blind = without<trace::Parameters>(trace);
  EXPECT_EQ(state(blind, "lr-not-scaled"), State::not_triggered);
  EXPECT_EQ(state(blind, "linear-rule-with-adam"), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
