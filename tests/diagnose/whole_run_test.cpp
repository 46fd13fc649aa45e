// A right run, judged by every detector.
#include <gtest/gtest.h>
#include <lockstep/diagnose/detector.h>

#include <algorithm>
#include <set>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class WholeRun : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WholeRun, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(WholeRun, IsCleanAndWasLookedAt) {
  auto trace = Job(GetParam()).run();
  for (auto& rank : trace.ranks)
    record(rank, 3, trace::Collective{0, 1, "world", "allreduce", "sum", -1, "float", {9}});
  expect_nothing(trace);
  // They need what a right run of this size cannot show.
  const std::set<std::string> impossible{"padding-overruns",
                                         "no-gradient-sync",
                                         "linear-rule-with-adam",
                                         "mean-of-local-means",
                                         "last-accumulation-window-lost",
                                         "communicator-order",
                                         "silent-single-process"};
  // They need several backwards, losses that differ, BatchNorm, or what samples hold; jobs of their own tests have them.
  const std::set<std::string> of_other_jobs{
      "accumulation-not-divided",  "mean-of-microbatch-means",
      "sync-every-microbatch",     "no-sync-around-backward-only",
      "loss-all-reduced-in-place", "replica-buffers-lost",
      "local-batch-norm",          "samples-differ-across-ranks",
      "outside-parameters-differ"};
  const diagnose::Run run(trace);
  for (const auto& detector : diagnose::detectors()) {
    const auto verdict = detector.verdict(run);
    const bool lacks_something =
        of_other_jobs.count(detector.slug) > 0 ||
        detector.participants == diagnose::Participants::devices ||
        std::any_of(detector.needs.begin(), detector.needs.end(),
                    [&](const auto& kind) { return run.kinds.count(kind) == 0; });
    EXPECT_EQ(verdict.state, lacks_something                       ? State::not_triggered
                             : impossible.count(detector.slug) > 0 ? State::not_applicable
                                                                   : State::clean)
        << detector.slug << ": " << verdict.reason;
  }
}

TEST(WholeRunRows, AreOneForEachDetectorAndSayWhyTheyDidNotLook) {
  const auto rows = diagnose::diagnose(empty_trace(2)).rows;
  ASSERT_EQ(rows.size(), diagnose::detectors().size());
  std::set<std::string> slugs;
  for (const auto& row : rows) {
    slugs.insert(row.slug);
    EXPECT_TRUE(row.verdict.state == State::not_triggered ||
                row.verdict.state == State::not_applicable)
        << row.slug;
    EXPECT_FALSE(row.verdict.reason.empty()) << row.slug;
  }
  EXPECT_EQ(slugs.size(), diagnose::detectors().size());
}

TEST(WholeRunRows, OfAnAbsentRankOrNoRankAtAllFindNothing) {
  auto trace = Job(4).run();
  trace.ranks.erase(trace.ranks.begin());
  EXPECT_TRUE(diagnose::diagnose(trace).findings.empty());
  EXPECT_TRUE(diagnose::diagnose(trace::Trace{}).findings.empty());
}

// A run killed after any event: never a finding that the whole run does not have.
TEST_P(WholeRun, CutAnywhereStaysClean) {
  const auto whole = Job(GetParam()).run();
  for (std::size_t length = 0; length < whole.ranks[0].events.size(); length += 7) {
    const auto cut = cut_at(whole, length);
    ASSERT_TRUE(diagnose::diagnose(cut).findings.empty())
        << length << ": " << diagnose::diagnose(cut).findings[0].pitfall;
  }
}

TEST_P(WholeRun, NonFiniteGradientsAreNoFindingOfTheirReduction) {
  auto trace = Job(GetParam()).run();
  for (auto [step, local] : each<trace::LocalGradients>(trace))
    if (step > 1) local.values[0].sketch[0] = std::numeric_limits<double>::quiet_NaN();
  expect_nothing(trace);
}

}  // namespace
}  // namespace lockstep::simulated
