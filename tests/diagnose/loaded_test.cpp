// A model that loads its own tensors.
#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

const char* const kOwnWeights = "loaded-its-own-weights";

class Loaded : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Loaded, kOneToThree, testing::PrintToStringParamName());

TEST_P(Loaded, ItsOwnTensorsByARankIsNamedWithTheFirstStep) {
  auto trace = Job(GetParam()).run();
  for (const std::int64_t step : {2, 3})
    record(trace.ranks.back(), step, trace::OwnTensorsLoaded{"Net"});
  expect_only(trace, kOwnWeights, {GetParam() - 1}, 2, diagnose::Severity::advice);
  EXPECT_EQ(evidence(trace).rfind("Net was given", 0), 0u) << evidence(trace);
}

TEST_P(Loaded, NothingIsRight) {
  EXPECT_EQ(state(Job(GetParam()).run(), kOwnWeights), diagnose::State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
