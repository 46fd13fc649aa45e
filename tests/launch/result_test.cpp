// Which rank is named, and what a person reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/launch/result.h>

#include <csignal>

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;

RankEnd rank_end(int rank, End end, std::int64_t ended_ns, bool collective = false) {
  RankEnd result;
  result.rank = rank;
  result.end = end;
  result.ended_ns = ended_ns;
  result.collective = collective;
  return result;
}

TEST(RootCause, NoneWhereAllCompletedOrWereEndedByTheUser) {
  EXPECT_FALSE(find_root_cause({}));
  EXPECT_FALSE(find_root_cause({rank_end(0, End::completed, 2), rank_end(1, End::completed, 1)}));
  EXPECT_FALSE(find_root_cause({rank_end(0, End::stopped, 2), rank_end(1, End::completed, 1)}));
}

TEST(RootCause, OwnFailureBeforeCollectiveBeforeDeadline) {
  const auto collective = rank_end(0, End::raised, 1, true);
  const auto late = rank_end(1, End::deadline, 0);
  for (const End own : {End::raised, End::exited, End::signalled})
    EXPECT_EQ(find_root_cause({collective, late, rank_end(2, own, 9)}), 2) << to_string(own);
  EXPECT_EQ(find_root_cause({late, collective}), 0);
}

TEST(RootCause, EarliestAmongEquals) {
  EXPECT_EQ(find_root_cause({rank_end(0, End::raised, 5), rank_end(1, End::signalled, 4)}), 1);
  EXPECT_EQ(find_root_cause({rank_end(0, End::raised, 5, true), rank_end(1, End::raised, 4, true)}),
            1);
  EXPECT_EQ(find_root_cause({rank_end(0, End::exited, 5), rank_end(1, End::exited, 5)}), 0);
  // The launcher ended these; who obeyed first says nothing.
  EXPECT_EQ(find_root_cause({rank_end(0, End::deadline, 9), rank_end(1, End::deadline, 4)}), 0);
}

TEST(Result, CompletedOnlyWithoutFailureDeadlineOrInterrupt) {
  LaunchResult result;
  EXPECT_TRUE(result.completed());
  result.interrupted = SIGINT;
  EXPECT_FALSE(result.completed());
  result = {};
  result.deadline_expired = true;
  EXPECT_FALSE(result.completed());
  result = {};
  result.root_cause = 0;
  EXPECT_FALSE(result.completed());
}

TEST(Result, SummaryPutsTheRootCauseFirstInItsOwnWords) {
  LaunchResult result;
  result.ranks = {rank_end(0, End::raised, 1, true), rank_end(1, End::raised, 2),
                  rank_end(2, End::stopped, 3)};
  result.ranks[0].error = "peer closed";
  result.ranks[1].error = "no such file: data.gz";
  result.ranks[1].output_tail = "not repeated";
  result.root_cause = 1;
  EXPECT_EQ(result.summary(),
            "first: rank 1 raised: no such file: data.gz\n"
            "rank 0 raised: peer closed\n"
            "rank 2 was ended by the launcher");
}

TEST(Result, SummaryOfASignalShowsTheLastOutput) {
  LaunchResult result;
  result.ranks = {rank_end(0, End::signalled, 1)};
  result.ranks[0].signal = SIGSEGV;
  result.ranks[0].output_tail = "step 3\nstep 4";
  result.root_cause = 0;
  EXPECT_EQ(result.summary(),
            "first: rank 0 was ended by signal 11 (SIGSEGV)\nits last output:\n  step 3\n  "
            "step 4");
}

TEST(Result, SummaryOfTheDeadlineAndOfCtrlC) {
  LaunchResult result;
  result.ranks = {rank_end(0, End::deadline, 1)};
  result.root_cause = 0;
  result.deadline_expired = true;
  result.wall = std::chrono::milliseconds(2'340);
  EXPECT_EQ(result.summary(),
            "the deadline expired after 2.3 s\nfirst: rank 0 was still running at the deadline");
  LaunchResult stopped;
  stopped.ranks = {rank_end(0, End::stopped, 1)};
  stopped.interrupted = SIGINT;
  EXPECT_EQ(stopped.summary(),
            "interrupted by signal 2 (SIGINT) after 0.0 s\nrank 0 was ended by the launcher");
}

}  // namespace
}  // namespace lockstep::launch
