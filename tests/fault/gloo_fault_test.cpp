// Faults of ranks in real Gloo jobs: who is named, how, and how soon. The rows are those of the promises under
// faults (rows.json).
#include "gloo_fixture.h"

namespace lockstep::launch {
namespace {

using diagnose::RankState;
using launch::End;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

// Row 1. Rank 2 comes when rank 1 is dead, so that rank 1 died inside of it.
TEST_F(GlooFault, KilledInsideACollective) {
  const auto result = of({"allreduce", "begin;pid:" + path("one") + ";signal:9",
                          "ended:" + path("one") + ";allreduce"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::dead))) << text(result);
  EXPECT_LT(took(result), seconds(2));
  EXPECT_EQ(result.launch.root_cause, 1);
  EXPECT_EQ(result.launch.ranks[1].signal, SIGKILL);
  EXPECT_THAT(text(result),
              HasSubstr("rank 1 was ended by signal 9 (SIGKILL) in allreduce number 2"));
  for (const int survivor : {0, 2}) {  // which has an error of second rank, or no time for one
    const auto& end = result.launch.ranks[static_cast<std::size_t>(survivor)];
    EXPECT_TRUE(end.end == End::raised ? end.collective : end.end == End::stopped) << text(result);
  }
}

// Row 2.
TEST_F(GlooFault, FrozenBeforeACollective) {
  const auto result = of({"allreduce", "signal:19"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::stopped))) << text(result);
  EXPECT_LT(took(result), kNamed);
  EXPECT_GT(took(result), kTimeout / 2);
  EXPECT_THAT(text(result), HasSubstr("rank 1 was frozen by signal 19 (SIGSTOP)"));
}

// Row 3. All that are missing, and none other.
TEST_F(GlooFault, RanksThatSkipACollective) {
  const auto result = of({"broadcast", "hang", "broadcast", "hang"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::absent), Pair(3, RankState::absent)))
      << text(result);
  EXPECT_LT(took(result), kNamed);
  EXPECT_THAT(text(result),
              HasSubstr("rank 1 has not arrived at broadcast number 2, alive; its last was "
                        "allreduce number 1"));
}

// Row 4.
TEST_F(GlooFault, RankZeroSkipsACollective) {
  const auto result = of({"hang", "allreduce"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(0, RankState::absent))) << text(result);
  EXPECT_LT(took(result), kNamed);
}

// Row 5. It comes when the others have given up.
TEST_F(GlooFault, AStragglerIsLateAndNotAbsent) {
  const auto result = of({"allreduce", "await:" + path("rank_0.error.json") + ";allreduce"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::late))) << text(result);
  EXPECT_LT(took(result), kNamed);
  EXPECT_THAT(text(result), Not(HasSubstr("has not arrived")));
}

// Row 6.
TEST_F(GlooFault, AnotherOperationInItsPlace) {
  const auto result = of({"allreduce", "broadcast", "allreduce"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::mismatched))) << text(result);
  EXPECT_LT(took(result), kNamed);
  EXPECT_THAT(text(result), HasSubstr("rank 1 entered broadcast float32 4 root 0 as number 2"));
  EXPECT_THAT(text(result), HasSubstr("allreduce"));
}

// Row 19. The peer's error comes first, and is not the cause.
TEST_F(GlooFault, AnExceptionKeepsItsText) {
  const auto result =
      of({"allreduce", "await:" + path("rank_0.error.json") + ";raise:disk on fire"});
  EXPECT_EQ(result.launch.root_cause, 1) << text(result);
  EXPECT_EQ(result.launch.ranks[1].error, "disk on fire");
  EXPECT_TRUE(result.launch.ranks[0].collective);
  EXPECT_LT(result.launch.ranks[0].ended_ns, result.launch.ranks[1].ended_ns);
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::raised)));
}

// Row 20.
TEST_F(GlooFault, ASegfault) {
  const auto result = of({"allreduce", "segfault"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::dead))) << text(result);
  EXPECT_THAT(text(result), HasSubstr("rank 1 was ended by signal 11 (SIGSEGV) before allreduce "
                                      "number 2; its last was allreduce number 1"));
}

TEST_F(GlooFault, AnExitWithoutAWord) {
  const auto result = of({"allreduce", "exit:7"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::failed))) << text(result);
  EXPECT_THAT(text(result),
              HasSubstr("rank 1 exited with code 7 before allreduce number 2; its last was "
                        "allreduce number 1"));
}

// Row 21.
TEST_F(GlooFault, AnExitInOrderWhilePeersWait) {
  const auto result = of({"allreduce", "leave;exit:0"});
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::exited))) << text(result);
  EXPECT_LT(took(result), kNamed);
  EXPECT_THAT(text(result), HasSubstr("rank 1 exited in order before allreduce number 2"));
  EXPECT_THAT(text(result), HasSubstr("rank 0 waits in allreduce number 2"));
}

// Row 26: rank 0 ends its group while an operation is under way that nobody will join.
TEST_F(GlooFault, AGroupIsLeftWithAnOperationUnderWay) {
  const auto left = path("left");
  const auto result = of({"begin;clock:" + path("begun") + ";leave;pid:" + left, "await:" + left});
  EXPECT_EQ(result.launch.ranks[0].end, End::completed) << text(result);
  const auto took = result.launch.ranks[0].ended_ns - std::stoll(read_file(path("begun")));
  EXPECT_GT(took, std::chrono::nanoseconds(kTimeout / 2).count()) << "nothing was pending";
  EXPECT_LT(took, std::chrono::nanoseconds(kNamed).count());
}

}  // namespace
}  // namespace lockstep::launch
