// Whose gradients: the engine's count, the optimizer's parameters, the model's.
#include <gtest/gtest.h>

#include "engine_job.h"
#include "expect.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Engine : public testing::TestWithParam<int> {
 protected:
  // The last rank's backward of step 1 does not reach the last parameter.
  EngineJob leaves_one_out() const {
    EngineJob job(GetParam());
    const int odd = GetParam() - 1;
    job.parts = [odd](int rank, int step) {
      Part part;
      if (rank == odd && step == 1) part.reaches = {0, 1};
      return Parts{part};
    };
    return job;
  }
  // One forward and two backwards; the second brings the trunk's gradient again.
  EngineJob two_backwards() const {
    EngineJob job(GetParam());
    job.parts = [](int, int) {
      return Parts{{.reaches = {1, 0}}, {.reaches = {2, 0}, .same_forward = true}};
    };
    return job;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Engine, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Engine, ThatGetsEveryGradientIsRightAndWasLookedAt) {
  const auto trace = EngineJob(GetParam()).run();
  expect_nothing(trace);
  for (const auto* slug : {"unused-parameter", "frozen-after-wrapping", "parameter-ready-twice",
                           "optimizer-built-on-other-parameters", "zero-grad-on-bucket-view"})
    EXPECT_EQ(state(trace, slug), State::clean) << slug;
}

TEST_P(Engine, ThatWaitsForAnUnusedParameterIsNamedWithTheRankThatLeftItOut) {
  expect_only(leaves_one_out().run(), "unused-parameter", {GetParam() - 1}, 1);
}

TEST_P(Engine, ThatEveryRankLeavesWaitingIsNamedToo) {
  EngineJob job(GetParam());
  job.parts = [](int, int) { return Parts{{.reaches = {0, 1}}}; };
  expect_only(job.run(), "unused-parameter", all_ranks(GetParam()), 0);
}

TEST_P(Engine, ThatLooksForUnusedParametersIsRight) {
  auto job = leaves_one_out();
  job.find_unused = true;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "unused-parameter"), State::clean);
}

// Used in a microbatch that is not reduced, and not in the one that is.
TEST_P(Engine, MissesWhatOnlyAnEarlierMicrobatchUsed) {
  EngineJob job(GetParam());
  job.parts = [](int, int) {
    auto parts = accumulated(2);
    parts.back().reaches = {0, 1};
    return parts;
  };
  expect_only(job.run(), "unused-parameter", all_ranks(GetParam()), 0);
}

// Reduces nothing either, and goes on.
TEST_P(Engine, ThatIsBypassedWaitsForNothing) {
  auto job = leaves_one_out();
  job.bypasses_wrapper = true;
  expect_only(job.run(), "forward-bypasses-wrapper", all_ranks(GetParam()), 0);
  job.parts = [](int, int) { return Parts{{.reaches = {0, 1}}}; };
  expect_only(job.run(), "forward-bypasses-wrapper", all_ranks(GetParam()), 0);
  job.parts = [](int, int) { return Parts{{}}; };
  expect_only(job.run(), "forward-bypasses-wrapper", all_ranks(GetParam()), 0);
  job.steps = 1;
  expect_only(job.run(), "forward-bypasses-wrapper", all_ranks(GetParam()), 0);
}

TEST_P(Engine, ThatCountedALayerFrozenLaterIsNamed) {
  EngineJob job(GetParam());
  job.frozen_from = 1;
  expect_only(job.run(), "frozen-after-wrapping", all_ranks(GetParam()), 0);
}

TEST_P(Engine, ThatNeverHeardOfAThawedLayerIsNamed) {
  EngineJob job(GetParam());
  job.frozen_at_wrapping_from = 2;
  expect_only(job.run(), "frozen-after-wrapping", all_ranks(GetParam()), 0);
}

TEST_P(Engine, OfALayerFrozenBeforeOrLookedForIsRight) {
  EngineJob job(GetParam());
  job.frozen_from = 1;
  job.find_unused = true;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "frozen-after-wrapping"), State::clean);
  job.find_unused = false;
  job.frozen_at_wrapping_from = 1;
  expect_nothing(job.run());
}

TEST_P(Engine, ThatGetsAGradientTwiceIsNamed) {
  expect_only(two_backwards().run(), "parameter-ready-twice", all_ranks(GetParam()), 0);
}

// A layer that is computed anew inside backward.
TEST_P(Engine, ThatGetsAGradientTwiceInOneBackwardIsNamed) {
  EngineJob job(GetParam());
  job.parts = [](int, int) { return Parts{{.reaches = {2, 0, 1, 0}}}; };
  expect_only(job.run(), "parameter-ready-twice", all_ranks(GetParam()), 0);
  job.parts = [](int, int) { return Parts{{.reaches = {2, 0, 0, 1}}}; };
  expect_only(without<trace::Loss>(job.run()), "parameter-ready-twice", all_ranks(GetParam()), 0);
}

// Without losses it is not known where the second one begins.
TEST_P(Engine, ThatIsCutOffBehindTwoWholeBackwardsOfOneForwardIsRight) {
  EngineJob job(GetParam());
  job.parts = [](int, int) { return Parts{{}, {.same_forward = true}}; };
  auto trace = without<trace::Loss>(job.run());
  for (auto& rank : trace.ranks) {
    const auto update =
        std::find_if(rank.events.begin(), rank.events.end(),
                     [](const trace::Event& event) { return event.is<trace::Update>(); });
    ASSERT_NE(update, rank.events.end());
    rank.events.erase(update, rank.events.end());
  }
  EXPECT_EQ(state(trace, "parameter-ready-twice"), State::clean);
}

TEST_P(Engine, ThatIsToldToWaitForTheSecondBackwardIsRight) {
  EngineJob job(GetParam());
  job.find_unused = true;
  job.parts = [](int, int) {
    return Parts{{.reaches = {1, 0}, .no_sync = true}, {.reaches = {2, 0}, .same_samples = true}};
  };
  const auto trace = job.run();
  EXPECT_EQ(state(trace, "parameter-ready-twice"), State::clean);
  EXPECT_EQ(state(trace, "unused-parameter"), State::clean);
  expect_nothing(trace);
  EXPECT_EQ(state(without<trace::SyncGradients>(trace), "parameter-ready-twice"), State::clean);
}

// Every second backward reduces, each time without a branch: the run is killed between the two.
TEST_P(Engine, ThatReducesEachOfTwoBackwardsIsRightWhereverItIsCut) {
  EngineJob job(GetParam());
  job.find_unused = true;
  job.steps = 1;
  job.parts = [](int, int) {
    return Parts{{.reaches = {1, 0}, .share = 0.5}, {.reaches = {2, 0}, .share = 0.5}};
  };
  const auto whole = job.run();
  for (std::size_t length = 0; length < whole.ranks[0].events.size(); ++length) {
    auto cut = whole;
    for (auto& rank : cut.ranks) rank.events.resize(std::min(rank.events.size(), length));
    for (const auto* slug : {"parameter-ready-twice", "unused-parameter"})
      EXPECT_NE(state(cut, slug), State::found) << slug << " " << length;
  }
}

TEST_P(Engine, ItsArrivalsMustBeRecorded) {
  for (const auto* slug : {"unused-parameter", "parameter-ready-twice"}) {
    const auto trace =
        slug == std::string("unused-parameter") ? leaves_one_out().run() : two_backwards().run();
    EXPECT_EQ(state(without<trace::GradientArrived>(trace), slug), State::not_triggered) << slug;
    EXPECT_EQ(state(without<trace::Engine>(trace), slug), State::not_triggered) << slug;
  }
  const auto neither = without<trace::Forward>(without<trace::Loss>(two_backwards().run()));
  EXPECT_EQ(state(neither, "parameter-ready-twice"), State::not_triggered);
  auto other = leaves_one_out().run();
  for (auto [step, engine] : each<trace::Engine>(other)) engine.kind = "data_parallel";
  EXPECT_EQ(state(other, "unused-parameter"), State::not_triggered);
}

// Arrivals are recorded on the first four steps, and the fault comes at the eleventh.
class LateFault : public Engine {
 protected:
  static constexpr int kStep = 10;
  EngineJob late(std::function<Parts(int rank)> parts) const {
    EngineJob job(GetParam());
    job.steps = 14;
    job.recorded_steps = 4;
    job.parts = [parts](int rank, int step) { return step == kStep ? parts(rank) : Parts{Part{}}; };
    return job;
  }
  void expect_not_looked_at(const trace::Trace& trace) const {
    for (const auto* slug : {"unused-parameter", "parameter-ready-twice"})
      EXPECT_EQ(state(trace, slug), State::not_triggered) << slug;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, LateFault, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(LateFault, OfABranchThatOneRankLeavesOutIsNotCalledClean) {
  const auto job = late([](int rank) {
    Part part;
    if (rank == 0) part.reaches = {0, 1};
    return Parts{part};
  });
  expect_not_looked_at(job.run());
  // Those that wait for rank 0 tell it where no samples are recorded.
  expect_not_looked_at(without<trace::Samples>(job.run()));
}

TEST_P(LateFault, OfABranchThatAllLeaveOutIsNotCalledClean) {
  expect_not_looked_at(late([](int) { return Parts{{.reaches = {0, 1}}}; }).run());
}

TEST_P(LateFault, OfAGradientThatComesTwiceIsNotCalledClean) {
  expect_not_looked_at(late([](int) { return Parts{{.reaches = {2, 0, 1, 0}}}; }).run());
}

TEST_P(LateFault, InAStepThatIsRecordedIsNamed) {
  auto job = late([](int) { return Parts{{.reaches = {0, 1}}}; });
  job.recorded_steps = kStep + 1;
  expect_only(job.run(), "unused-parameter", all_ranks(GetParam()), kStep);
}

TEST_P(LateFault, OfARankThatWasKilledIsNotCalledClean) {
  auto trace = late([](int) { return Parts{Part{}}; }).run();
  trace.ranks.back().closed = false;
  expect_not_looked_at(trace);
}

TEST_P(LateFault, ThatDoesNotComeIsClean) {
  auto trace = late([](int) { return Parts{Part{}}; }).run();
  for (const auto* slug : {"unused-parameter", "parameter-ready-twice"})
    EXPECT_EQ(state(trace, slug), State::clean) << slug;
  // A batch that is left over at the end of a pass is no step.
  for (auto& rank : trace.ranks) {
    rank.events.insert(rank.events.begin(), {0, -1, trace::PassBegin{"train", 0}});
    record(rank, 14, trace::Samples{"train", {1, 2}});
    record(rank, 14, trace::PassEnd{"train", 0, 15});
  }
  for (const auto* slug : {"unused-parameter", "parameter-ready-twice"})
    EXPECT_EQ(state(trace, slug), State::clean) << slug;
}

TEST_P(Engine, AnOptimizerOfOtherParametersIsNamed) {
  EngineJob job(GetParam());
  job.optimizer_moves_model = [](int, int) { return false; };
  expect_only(job.run(), "optimizer-built-on-other-parameters", all_ranks(GetParam()), 0);
}

// A student is trained after its teacher, and its optimizer holds the teacher's parameters.
TEST_P(Engine, AnOptimizerOfTheModelBeforeIsNamed) {
  EngineJob job(GetParam());
  job.optimizer_moves_model = [](int, int step) { return step < 2; };
  auto trace = job.run();
  EXPECT_EQ(state(trace, "optimizer-built-on-other-parameters"), State::clean);
  for (auto& rank : trace.ranks) record(rank, 2, trace::Engine{"distributed_data_parallel", 2});
  EXPECT_EQ(state(trace, "optimizer-built-on-other-parameters"), State::found);
}

TEST_P(Engine, AnOptimizerAtARateOfZeroIsRight) {
  EngineJob job(GetParam());
  job.lr = [](int step) { return step < 2 ? 0.0 : 0.1; };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "optimizer-built-on-other-parameters"), State::clean);
  job.lr = [](int) { return 0.0; };
  EXPECT_EQ(state(job.run(), "optimizer-built-on-other-parameters"), State::not_triggered);
}

TEST_P(Engine, AnOptimizerThatSkipsAnUpdateIsRight) {
  EngineJob job(GetParam());
  job.optimizer_moves_model = [](int, int step) { return step != 1; };
  expect_nothing(job.run());
}

TEST_P(Engine, AnOptimizerOfOneRankIsNamedThere) {
  EngineJob job(GetParam());
  job.optimizer_moves_model = [](int rank, int) { return rank != 1; };
  const auto rows = diagnose::diagnose(job.run()).findings;
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].pitfall, "optimizer-built-on-other-parameters");
  EXPECT_EQ(rows[0].ranks, std::vector<int>{1});
}

TEST_P(Engine, ViewsThatTheOptimizerIsToClearAreNamedAtTheSecondStep) {
  EngineJob job(GetParam());
  job.views = true;
  job.zero_grad = "optimizer";
  expect_only(job.run(), "zero-grad-on-bucket-view", all_ranks(GetParam()), 1);
}

TEST_P(Engine, ViewsThatOthersClearAreRight) {
  for (const auto* by : {"module", "tensor"}) {
    EngineJob job(GetParam());
    job.views = true;
    job.zero_grad = by;
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "zero-grad-on-bucket-view"), State::clean);
    EXPECT_EQ(state(without<trace::ZeroGrad>(job.run()), "zero-grad-on-bucket-view"),
              State::not_triggered);
  }
}

TEST_P(Engine, GradientsThatTheOptimizerMayClearAreRight) {
  EngineJob job(GetParam());
  job.zero_grad = "optimizer";
  expect_nothing(job.run());
}

// Of a LibTorch that can.
TEST_P(Engine, ViewsThatTheOptimizerDidClearAreRight) {
  EngineJob job(GetParam());
  job.views = true;
  auto trace = job.run();
  for (auto [step, call] : each<trace::ZeroGrad>(trace)) call.by = "optimizer";
  expect_nothing(trace);
}

// Killed right there: the last thing it did need not be what ended it.
TEST_P(Engine, ClearingIsNoFindingBecauseTheRunEndsThere) {
  for (const bool views : {false, true}) {
    EngineJob job(GetParam());
    job.views = views;
    job.zero_grad = views ? "module" : "optimizer";
    auto trace = job.run();
    for (auto& rank : trace.ranks)
      while (!rank.events.back().is<trace::ZeroGrad>()) rank.events.pop_back();
    expect_nothing(trace);
  }
}

}  // namespace
}  // namespace lockstep::simulated
