// Parameters beside the model: an optimizer's, a module's that the program calls or keeps; and what the model has
// frozen.
#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

class Outside : public testing::TestWithParam<int> {
 protected:
  // A right job, of which each rank also records that holder's parameter after updates 0 to 3; after `first` to 3.
  trace::Trace holding(const std::string& holder,
                       const std::function<double(int rank, int step)>& value,
                       int first = 0) const {
    auto trace = Job(GetParam()).run();
    for (auto& rank : trace.ranks)
      for (int step = first; step < 4; ++step)
        record(rank, step,
               trace::OutsideParameters{
                   holder, {"scale"}, {summarize(Values{value(rank.participant.rank, step)})}});
    return trace;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Outside, kTwoAndThree, testing::PrintToStringParamName());

double step_of(int, int step) {
  return 1 + step;
}

TEST_P(Outside, ParametersThatGoApartAreNamedWithTheirStep) {
  const auto trace =
      holding("optimizers", [](int rank, int step) { return step + (step >= 2 ? rank + 1 : 1); });
  expect_only(trace, "outside-parameters-differ", all_ranks(GetParam()), 2, Severity::advice);
  const auto finding = diagnose::diagnose(trace).findings.at(0);
  EXPECT_EQ(finding.after, 1);
  EXPECT_NE(finding.evidence.find("\"scale\""), std::string::npos) << finding.evidence;
}

TEST_P(Outside, AModuleOfOneRankThatIsAnotherFromTheStartIsNamed) {
  const auto trace = holding("Target", [](int rank, int) { return rank == 1 ? 2 : 1; });
  expect_only(trace, "outside-parameters-differ", odd_one_out(GetParam(), 1), 0);
}

TEST_P(Outside, WhatEachRankTrainedForItselfFromTheStartIsAdvice) {
  const auto trace = holding("optimizers", [](int rank, int step) { return rank + step + 1; });
  expect_only(trace, "outside-parameters-differ", all_ranks(GetParam()), 0, Severity::advice);
}

TEST_P(Outside, WhatAnOptimizerHeldBeforeTheFirstStepIsAdvice) {
  const auto value = [](int rank, int step) { return rank * (step + 1) + 2; };
  expect_only(holding("optimizers", value, -1), "outside-parameters-differ", all_ranks(GetParam()),
              0, Severity::advice);
  const auto other = [](int rank, int step) { return rank + step + 2; };
  expect_only(holding("optimizers", other, -1), "outside-parameters-differ", all_ranks(GetParam()),
              0, Severity::advice);
}

TEST_P(Outside, WhatIsFrozenInTheModelIsNamed) {
  const auto trace = holding("frozen parameters", [](int rank, int) { return rank == 1 ? 2 : 1; });
  expect_only(trace, "outside-parameters-differ", odd_one_out(GetParam(), 1), 0);
  expect_nothing(holding("frozen parameters", [](int, int) { return 1; }));
}

TEST_P(Outside, BuffersOfAModuleThatGoApartAreAdvice) {
  const auto trace =
      holding("buffers of Teacher", [](int rank, int step) { return 1 + rank * step; });
  expect_only(trace, "outside-parameters-differ", all_ranks(GetParam()), 1, Severity::advice);
  const auto finding = diagnose::diagnose(trace).findings.at(0);
  EXPECT_NE(finding.evidence.find("buffer 0 (\"scale\") of Teacher differs"), std::string::npos)
      << finding.evidence;
}

TEST_P(Outside, AModuleThatIsKeptAndNotCalledIsAdviceWhereItMoves) {
  const auto followed_on_one = [](int rank, int step) { return rank == 0 ? 2 + step : 1; };
  const auto trace = holding("kept Average", followed_on_one);
  expect_only(trace, "outside-parameters-differ", odd_one_out(GetParam(), 0), 0, Severity::advice);
  expect_nothing(holding("kept Average", step_of));
  // A template that each rank drew, and that nobody uses.
  expect_nothing(holding("kept Layer", [](int rank, int) { return 1 + rank; }));
}

TEST_P(Outside, AModuleThatIsKeptAndThenCalledIsToldOnce) {
  const auto value = [](int rank, int step) { return rank + step + 1; };
  auto trace = holding("kept Target", value);
  for (auto& rank : trace.ranks)
    record(rank, 3,
           trace::OutsideParameters{
               "Target", {"scale"}, {summarize(Values{value(rank.participant.rank, 3) * 1.0})}});
  // At the end, to be tested.
  expect_only(trace, "outside-parameters-differ", all_ranks(GetParam()), 0, Severity::advice);
  trace = holding("kept Target", value);
  for (auto& rank : trace.ranks)
    for (int step = 2; step < 4; ++step)
      record(
          rank, step,
          trace::OutsideParameters{
              "Target", {"scale"}, {summarize(Values{value(rank.participant.rank, step) * 1.0})}});
  expect_only(trace, "outside-parameters-differ", all_ranks(GetParam()), 2);
}

TEST_P(Outside, ParametersThatAreEqualOrBecomeEqualAgainAreRight) {
  expect_nothing(holding("Target", step_of));
  expect_nothing(holding("Target", [](int rank, int step) { return step < 3 ? rank + 1 : 1; }));
  expect_nothing(holding("Target", [](int rank, int step) { return step == 3 ? rank + 1 : 1; }));
}

TEST_P(Outside, OfOneRankAloneAreLeftAlone) {
  auto trace = Job(GetParam()).run();
  for (int step = 0; step < 4; ++step)
    record(trace.ranks[0], step,
           trace::OutsideParameters{"Average", {"scale"}, {summarize(Values{1.0 + step})}});
  expect_nothing(trace);
}

TEST_P(Outside, OfRanksThatShareOutAModelAreNotJudged) {
  auto trace = holding("optimizers", [](int rank, int step) { return rank * step + 1; });
  for (auto& rank : trace.ranks)
    record(rank, 0, trace::Collective{0, 1, "0", "alltoall_base", "", -1, "float", {8}});
  EXPECT_EQ(state(trace, "outside-parameters-differ"), State::not_triggered);
}

// ---- numbers and tensors that a Python program keeps ----

// A right job whose ranks each tell, before the third and the 25th update, what it was before the first and is now.
trace::Trace keeping(int ranks, const std::function<std::string(int rank, int look)>& hash) {
  auto trace = Job(ranks).run();
  for (auto& rank : trace.ranks)
    for (const int look : {1, 2})
      record(rank, look == 1 ? 2 : 24,
             trace::Moving{{{"codes in train()", hash(rank.participant.rank, 0),
                             hash(rank.participant.rank, look)}}});
  return trace;
}

TEST_P(Outside, ATensorThatWasTheSameAndMovesByRankIsAdvice) {
  const auto trace = keeping(GetParam(), [](int rank, int look) {
    return look == 0 ? "abc" : std::to_string(10 * look + rank);
  });
  expect_only(trace, "outside-parameters-differ", all_ranks(GetParam()), 1, Severity::advice);
  EXPECT_EQ(evidence(trace).rfind("codes in train() was the same", 0), 0u) << evidence(trace);
}

TEST_P(Outside, ATensorOfOneRankThatStaysBehindIsThatRanks) {
  const auto trace = keeping(
      GetParam(), [](int rank, int look) { return rank == 1 ? "0" : std::to_string(look); });
  expect_only(trace, "outside-parameters-differ", odd_one_out(GetParam(), 1), 1, Severity::advice);
}

TEST_P(Outside, ATensorThatDifferedFromTheStartOrMovesAlikeOrComesTogetherIsRight) {
  for (const auto& hash : std::vector<std::function<std::string(int, int)>>{
           [](int rank, int look) { return std::to_string(10 * look + rank); },
           [](int, int look) { return std::to_string(look); },
           [](int rank, int look) { return std::to_string(look == 1 ? rank : 7); }}) {
    const auto trace = keeping(GetParam(), hash);
    expect_nothing(trace);
    EXPECT_EQ(state(trace, "outside-parameters-differ"), State::clean);
  }
}

}  // namespace
}  // namespace lockstep::simulated
