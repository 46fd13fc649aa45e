// Parameters that get a gradient, and that no update moves.
#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

const char* const kNotUpdated = "parameters-not-updated";

class Untrained : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Untrained, kOneToThree, testing::PrintToStringParamName());

// The weight moves by another rule than plain SGD's, and the bias as `moves` says.
trace::Trace job(int ranks, bool moves) {
  Job how(ranks);
  how.reference_lr = 0.1;
  how.reference_world_size = ranks;
  auto trace = how.run();
  for (auto [step, parameters] : each<trace::Parameters>(trace)) {
    const auto weight = draw_values(7, step, 0), bias = draw_values(8, moves ? step : -1, 0);
    parameters.values = summarize({weight[0], bias[1]});
  }
  return trace;
}

TEST_P(Untrained, ABiasThatNoOptimizerHoldsIsNamed) {
  const auto trace = job(GetParam(), false);
  expect_only(trace, kNotUpdated, all_ranks(GetParam()), 0, Severity::advice);
  EXPECT_NE(evidence(trace).find("(\"bias0\") gets a gradient in each of 4"), std::string::npos)
      << evidence(trace);
  EXPECT_EQ(state(job(GetParam(), true), kNotUpdated), State::clean);
}

TEST_P(Untrained, ThatNoEngineAndNoOptimizerHoldsAreNamed) {
  auto trace = job(GetParam(), true);
  for (auto& rank : trace.ranks) record(rank, 11, trace::Untrained{{{{8, 4}, 4}, {{8}, 3}}});
  expect_only(trace, kNotUpdated, all_ranks(GetParam()), 3, Severity::advice);
  EXPECT_NE(evidence(trace).find("2 parameters, of shape [8, 4] and [8]"), std::string::npos)
      << evidence(trace);
}

TEST_P(Untrained, WithoutAGradientIsRight) {
  auto trace = job(GetParam(), false);
  for (auto [step, gradients] : each<trace::LocalGradients>(trace))
    if (step == 2) gradients.values[1] = summarize(Values(3));
  EXPECT_EQ(state(trace, kNotUpdated), State::clean);
}

// Of a bias before BatchNorm, or of attention's keys: it is zero but for rounding.
TEST_P(Untrained, WithAGradientThatIsRoundingIsRight) {
  auto trace = job(GetParam(), false);
  for (auto [step, gradients] : each<trace::LocalGradients>(trace))
    gradients.values[1].norm = 1e-7 * gradients.values[0].norm;
  EXPECT_EQ(state(trace, kNotUpdated), State::clean);
}

TEST_P(Untrained, AtARateOfZeroIsRight) {
  auto trace = job(GetParam(), false);
  for (auto [step, update] : each<trace::Update>(trace)) update.lr = {0.1, 0};
  EXPECT_EQ(state(trace, kNotUpdated), State::not_triggered);
}

// A warm-up begins with it, and then the bias should move.
TEST_P(Untrained, AtARateThatIsZeroAtFirstIsNamed) {
  auto trace = job(GetParam(), false);
  for (auto [step, update] : each<trace::Update>(trace)) update.lr = {step == 0 ? 0 : 0.1};
  EXPECT_EQ(state(trace, kNotUpdated), State::found);
}

TEST_P(Untrained, OfSixteenBitsIsRight) {
  auto trace = job(GetParam(), false);
  for (auto [step, model] : each<trace::Model>(trace)) model.dtypes[1] = "bfloat16";
  EXPECT_EQ(state(trace, kNotUpdated), State::clean);
}

TEST_P(Untrained, WhereNothingMovesIsRight) {
  auto trace = job(GetParam(), false);
  for (auto [step, parameters] : each<trace::Parameters>(trace))
    parameters.values = summarize(draw_values(8, -1, 0));
  EXPECT_EQ(state(trace, kNotUpdated), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
