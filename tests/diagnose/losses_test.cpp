// Ranks that weigh their losses differently, or whose losses stay apart.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

constexpr int kSteps = 40;

class Losses : public testing::TestWithParam<int> {
 protected:
  // A job that tells what backward() starts from, and not what its samples lost: a loss that falls, with noise of a fifth,
  // `times` as great on a rank.
  trace::Trace told(const std::function<double(int rank, int step)>& times,
                    int steps = kSteps) const {
    auto trace = without<trace::Update>(without<trace::Loss>(Job(GetParam()).run()));
    for (auto& rank : trace.ranks) {
      std::mt19937_64 random(static_cast<std::uint64_t>(rank.participant.rank));
      std::normal_distribution<double> noise(0, 0.2);
      for (int step = 0; step < steps; ++step) {
        record(rank, step,
               trace::Backward{2 * std::exp(noise(random) - 0.02 * step) *
                               times(rank.participant.rank, step)});
        record(rank, step, trace::Update{{0.1}});
      }
    }
    return trace;
  }
  State judged(const trace::Trace& trace) const { return state(trace, "losses-differ"); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Losses, kTwoAndThree, testing::PrintToStringParamName());

double alike(int, int) {
  return 1;
}

double greater_on_one(int rank, int) {
  return rank == 1 ? 2 : 1;
}

TEST_P(Losses, ThatAreNoNumbersToTheEndAreNamedByTheRankThatBegan) {
  const auto lost = [](int rank, int step) {
    return step >= (rank == 1 ? 18 : 19) ? std::nan("") : 1.0;
  };
  expect_only(told(lost), "not-finite", {1}, 18);
  EXPECT_NE(evidence(told(lost)).find("that of all ranks from step 19 on"), std::string::npos);
  expect_only(told([](int, int step) { return step >= 7 ? INFINITY : 1.0; }), "not-finite",
              all_ranks(GetParam()), 7);
  expect_nothing(told([](int, int step) { return step == 7 ? std::nan("") : 1.0; }));
  expect_nothing(told([](int, int step) { return step == kSteps - 1 ? std::nan("") : 1.0; }));
  EXPECT_EQ(state(without<trace::Loss>(Job(GetParam()).run()), "not-finite"), State::not_triggered);
}

// Of two micro-batches the second one's loss may be finite.
TEST_P(Losses, ThatAreNoNumbersAreOfTheStepInWhichOneIs) {
  auto trace = told([](int rank, int step) { return step >= (rank == 1 ? 18 : 19) ? NAN : 1.0; });
  for (auto& rank : trace.ranks)
    for (auto at = rank.events.begin(); at != rank.events.end(); ++at)
      if (at->is<trace::Backward>() && at->step == 18) {
        at = rank.events.insert(at + 1, {at->time_ns, at->step, trace::Backward{1}});
        break;
      }
  expect_only(trace, "not-finite", {1}, 18);
}

TEST_P(Losses, ThatWereRecordedNowAndThenNameNoRank) {
  auto trace = told([](int rank, int step) { return step >= (rank == 1 ? 18 : 19) ? NAN : 1.0; });
  for (auto& rank : trace.ranks)
    std::erase_if(rank.events, [](const auto& event) {
      return event.template is<trace::Backward>() && event.step % 8 != 0;
    });
  expect_only(trace, "not-finite", all_ranks(GetParam()), 24);
  EXPECT_EQ(diagnose::diagnose(trace).findings.at(0).after, 16);
}

TEST_P(Losses, WhoseScaleAloneIsTooLargeAreRight) {
  for (const bool updates : {true, false}) {
    auto trace = told([](int, int) { return INFINITY; });
    for (auto& rank : trace.ranks)
      for (int step = 0; updates && step < kSteps; ++step) {
        const auto is_its = [step](const trace::Event& event) {
          return event.is<trace::Update>() && event.step == step;
        };
        const auto at = std::ranges::find_if(rank.events, is_its);
        rank.events.insert(at, {at->time_ns, step, trace::ScaledStep{1e30, false, true}});
      }
    EXPECT_EQ(state(trace, "not-finite"), updates ? State::clean : State::found);
  }
}

TEST_P(Losses, OfStepsThatAreLeftOutMayBeNoNumbersForAWhile) {
  for (const bool lasts : {false, true}) {
    const int from = lasts ? kSteps - 9 : kSteps - 8;
    auto trace = told([&](int, int step) { return step >= from ? INFINITY : 1.0; });
    for (auto& rank : trace.ranks) {
      std::vector<trace::Event> events;
      for (const auto& event : rank.events) {
        events.push_back(event);
        if (event.is<trace::Backward>() && event.step >= from)
          events.push_back({event.time_ns, event.step, trace::ScaledStep{1, true, false}});
      }
      rank.events = std::move(events);
    }
    EXPECT_EQ(state(trace, "not-finite"), lasts ? State::found : State::clean);
  }
}

// What makes a training go wrong makes it end so.
TEST_P(Losses, ThatAreNoNumbersFollowFromAViolationThatBeganBefore) {
  auto trace = told([](int, int step) { return step >= 7 ? INFINITY : 1.0; });
  for (auto [step, update] : each<trace::Update>(trace.ranks[1]))
    if (step >= 2) update.lr = {0.2};
  expect_only(trace, "update-differs", odd_one_out(GetParam(), 1), 2);
}

TEST_P(Losses, OfWhichOneWeighsTwiceAreNamed) {
  auto trace = Job(GetParam()).run();
  for (auto [step, loss] : each<trace::Loss>(trace.ranks[1])) loss.backward_value *= 2;
  expect_only(trace, "loss-weight-differs", odd_one_out(GetParam(), 1), 0);
  EXPECT_NE(evidence(trace).find("2 on rank 1"), std::string::npos) << evidence(trace);
}

TEST_P(Losses, ThatAreScaledByAnotherScaleAreNoFinding) {
  auto trace = Job(GetParam()).run();
  std::vector<std::int64_t> steps;
  for (auto [step, loss] : each<trace::Loss>(trace.ranks[1])) {
    loss.backward_value *= 1024;
    steps.push_back(step);
  }
  for (const auto step : steps) record(trace.ranks[1], step, trace::ScaledStep{.scale = 1024});
  EXPECT_NE(state(trace, "loss-weight-differs"), State::found);
}

TEST_P(Losses, WithTermsOfTheirOwnAreNoFinding) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (auto* loss = event.change<trace::Loss>())
        loss->backward_value +=
            0.1 * static_cast<double>(rank.participant.rank * (1 + event.step % 3));
  EXPECT_NE(state(trace, "loss-weight-differs"), State::found);
}

TEST_P(Losses, ThatAreAlikeAreRight) {
  EXPECT_EQ(judged(told(alike)), State::clean);
  expect_nothing(told(alike));
}

TEST_P(Losses, OfWhichOneStaysTwiceAsGreatAreAdviceWithBothValues) {
  const auto trace = told(greater_on_one);
  expect_only(trace, "losses-differ", odd_one_out(GetParam(), 1), 0, Severity::advice);
  EXPECT_NE(evidence(trace).find("in the geometric mean of 40 steps, is 1."), std::string::npos)
      << evidence(trace);
}

TEST_P(Losses, OfOneBatchInEveryStepAreRight) {
  for (const bool one : {true, false}) {
    auto trace = told(greater_on_one);
    for (auto& rank : trace.ranks)
      for (int step = 0; step < kSteps; ++step)
        record(rank, step, trace::Rows{{rank.participant.rank, one ? 0 : step}});
    EXPECT_EQ(judged(trace), one ? State::clean : State::found);
  }
}

TEST_P(Losses, ThatPartLaterAreNamedFromThere) {
  const auto trace = told([](int rank, int step) { return rank == 1 && step >= 8 ? 0.2 : 1; });
  expect_only(trace, "losses-differ", odd_one_out(GetParam(), 1), 8, Severity::advice);
}

TEST_P(Losses, ThatPartInAFewStepsAreRight) {
  EXPECT_EQ(
      judged(told([](int rank, int step) { return rank == 1 && step >= kSteps - 4 ? 2 : 1; })),
      State::clean);
  EXPECT_EQ(judged(told([](int rank, int step) { return rank == 1 && step % 8 == 0 ? 5 : 1; })),
            State::clean);
  EXPECT_EQ(judged(told(greater_on_one, 15)), State::not_triggered);
}

TEST_P(Losses, ThatDifferByATenthAreRight) {
  EXPECT_EQ(judged(told([](int rank, int) { return rank == 1 ? 1.1 : 1; }, 200)), State::clean);
}

TEST_P(Losses, OfBatchesOfOtherSizesAreNotJudged) {
  auto trace = told(greater_on_one);
  for (int step = 0; step < kSteps; ++step)
    record(trace.ranks[1], step, trace::Samples{.phase = "train", .ids = {-1}});
  EXPECT_EQ(judged(trace), State::not_triggered);
}

TEST_P(Losses, OfAnotherNumberOfBackwardsAreNotJudged) {
  auto trace = told(greater_on_one);
  for (int step = 0; step < kSteps; ++step) record(trace.ranks[1], step, trace::Backward{0.5});
  EXPECT_EQ(judged(trace), State::not_triggered);
}

TEST_P(Losses, ThatAreNotAboveNothingAreNotJudged) {
  EXPECT_EQ(judged(told([](int rank, int) { return rank == 1 ? -1 : 1; })), State::not_triggered);
  EXPECT_EQ(judged(told([](int rank, int) { return rank == 1 ? NAN : 1; })), State::not_triggered);
  const auto negative_each = [](int steps) {
    return [steps](int rank, int step) {
      return (step % steps == 1 ? -1 : 1) * greater_on_one(rank, step);
    };
  };
  EXPECT_EQ(judged(told(negative_each(3))), State::not_triggered);
  EXPECT_EQ(judged(told(negative_each(20))), State::found);
}

TEST_P(Losses, OfScaledBackwardsAreDividedByTheScale) {
  auto trace = told([](int rank, int) { return rank == 1 ? 1024 : 1; });
  for (int step = 0; step < kSteps; ++step)
    record(trace.ranks[1], step, trace::ScaledStep{.scale = 1024});
  EXPECT_EQ(judged(trace), State::clean);
}

TEST_P(Losses, OfReplicasThatDifferAreAnotherFinding) {
  Job job(GetParam());
  job.equal_start = false;
  auto trace = without<trace::Loss>(job.run());
  for (auto& rank : trace.ranks)
    for (int step = 0; step < kSteps; ++step)
      record(rank, step, trace::Backward{greater_on_one(rank.participant.rank, step)});
  EXPECT_EQ(judged(trace), State::clean);
}

TEST_P(Losses, OfRanksThatTrainOnTheirOwnAreNotJudged) {
  const auto apart = without<trace::Engine>(without<trace::LocalGradients>(told(greater_on_one)));
  EXPECT_EQ(judged(apart), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::simulated
