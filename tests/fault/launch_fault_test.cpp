// What launch() promises when ranks fail.
#include <gmock/gmock.h>
#include <lockstep/base/error.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstdlib>

#include "launch_fixture.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(LaunchFault, AllComplete) {
  const auto result = launch(ranks_that({"", "", ""}));
  EXPECT_TRUE(result.completed());
  EXPECT_FALSE(result.root_cause);
  ASSERT_EQ(result.ranks.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& end = result.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(end.rank, rank);
    EXPECT_EQ(end.end, End::completed);
    EXPECT_EQ(end.exit_code, 0);
  }
  EXPECT_THAT(result.summary(), HasSubstr("all 3 ranks completed"));
}

TEST_F(LaunchFault, EveryRankIsToldItsPlaceAndNothingOfTheLaunchersOwnJob) {
  for (const char* stray :
       {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK"})
    setenv(stray, "5", 1);
  unsetenv("OMP_NUM_THREADS");
  auto options =
      ranks_that({"environment:RANK,LOCAL_RANK,WORLD_SIZE,LOCAL_WORLD_SIZE,LOCKSTEP_STORE,"
                  "MASTER_PORT,TORCHELASTIC_RUN_ID,SLURM_PROCID,OMPI_COMM_WORLD_RANK,GIVEN",
                  ""});
  options.environment = {{"GIVEN", "a b"}, {"RANK", "9"}};
  const auto result = launch(options);
  for (const char* stray :
       {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "RANK"})
    unsetenv(stray);
  ASSERT_TRUE(result.completed()) << result.summary();
  EXPECT_EQ(read_file(path("rank_0.out")),
            "RANK=0\nLOCAL_RANK=0\nWORLD_SIZE=2\nLOCAL_WORLD_SIZE=2\nLOCKSTEP_STORE=file://" +
                path("store") +
                "\nMASTER_PORT=(unset)\nTORCHELASTIC_RUN_ID=(unset)\nSLURM_PROCID=(unset)\n"
                "OMPI_COMM_WORLD_RANK=(unset)\nGIVEN=a b\n");
}

TEST_F(LaunchFault, ThreadsAreSharedOutUnlessTheyAreSet) {
  unsetenv("OMP_NUM_THREADS");
  const std::string show = "environment:OMP_NUM_THREADS";
  ASSERT_TRUE(launch(ranks_that({show, show, show})).completed());
  const unsigned share = std::max(1U, std::thread::hardware_concurrency() / 3);
  EXPECT_EQ(read_file(path("rank_2.out")), "OMP_NUM_THREADS=" + std::to_string(share) + "\n");
  auto options = ranks_that({show});
  options.environment = {{"OMP_NUM_THREADS", "7"}};
  ASSERT_TRUE(launch(options).completed());
  EXPECT_EQ(read_file(path("rank_0.out")), "OMP_NUM_THREADS=7\n");
}

TEST_F(LaunchFault, WhatAnEarlierRunLeftIsNotTakenForThisRuns) {
  write_file(path("store"), "an old rendezvous");
  EXPECT_EQ(launch(ranks_that({"raise:the old error"})).ranks.at(0).error, "the old error");
  EXPECT_FALSE(std::filesystem::exists(path("store")));
  const auto result = launch(ranks_that({"exit:4"}));
  EXPECT_EQ(result.ranks.at(0).end, End::exited);
  EXPECT_EQ(result.ranks.at(0).error, "");
}

TEST_F(LaunchFault, OwnExceptionOutranksAPeersEarlierCollectiveError) {
  const auto result =
      launch(ranks_that({"collective:connection closed by peer",
                         "await:" + path("rank_0.error.json") + ";raise:disk on fire", "hang"}));
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks[0].end, End::raised);
  EXPECT_TRUE(result.ranks[0].collective);
  EXPECT_LT(result.ranks[0].ended_ns, result.ranks[1].ended_ns);
  EXPECT_EQ(result.ranks[1].end, End::raised);
  EXPECT_FALSE(result.ranks[1].collective);
  EXPECT_EQ(result.ranks[1].error, "disk on fire");
  EXPECT_EQ(result.ranks[1].exit_code, 3);
  EXPECT_EQ(result.ranks[2].end, End::stopped);
  EXPECT_THAT(result.summary(),
              AllOf(HasSubstr("first: rank 1 raised: disk on fire"),
                    HasSubstr("rank 0 raised: rank 0: collective allreduce number 7"),
                    HasSubstr("rank 2 was ended by the launcher")));
}

TEST_F(LaunchFault, CollectiveErrorIsTheRootCauseWhereNothingElseFailed) {
  const auto result = launch(ranks_that({"hang", "collective:timed out"}));
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks[0].end, End::stopped);
}

TEST_F(LaunchFault, RankThatRaisedFirstAndThenHangsInItsDestructorsIsTheRootCause) {
  const auto result =
      launch(ranks_that({"report:the first error;hang",
                         "await:" + path("rank_0.error.json") + ";raise:the second error"}));
  EXPECT_EQ(result.root_cause, 0);
  EXPECT_EQ(result.ranks[0].end, End::raised);
  EXPECT_EQ(result.ranks[0].error, "the first error");
  EXPECT_LT(result.ranks[0].ended_ns, result.ranks[1].ended_ns);
}

TEST_F(LaunchFault, KilledRankIsNamedWithinTwoSeconds) {
  auto options = ranks_that({"await:" + path("gone") + ";collective:peer closed",
                             "clock:" + path("death") + ";signal:9", "hang"});
  options.linger = milliseconds(1'500);
  const auto result = launch(options);
  const auto took = std::chrono::nanoseconds(monotonic_ns() - std::stoll(read_file(path("death"))));
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks[1].end, End::signalled);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  EXPECT_EQ(result.ranks[1].exit_code, 137);
  EXPECT_LT(took, seconds(2));
  EXPECT_THAT(result.summary(), HasSubstr("first: rank 1 was ended by signal 9 (SIGKILL)"));
}

TEST_F(LaunchFault, FrozenRankIsNamedThoughItsPeerComplained) {
  const auto result = launch(ranks_that({"collective:timed out", "signal:19"}));
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks[1].end, End::signalled);
  EXPECT_EQ(result.ranks[1].signal, SIGSTOP);
  EXPECT_THAT(result.summary(), HasSubstr("rank 1 was frozen by signal 19 (SIGSTOP)"));
}

TEST_F(LaunchFault, SegfaultIsASignal) {
  const auto result = launch(ranks_that({"segfault", "hang"}));
  EXPECT_EQ(result.root_cause, 0);
  EXPECT_EQ(result.ranks[0].end, End::signalled);
  EXPECT_EQ(result.ranks[0].signal, SIGSEGV);
}

TEST_F(LaunchFault, ExitWithoutAWordShowsTheLastOutput) {
  const auto result = launch(ranks_that({"hang", "complain:out of luck;exit:7"}));
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks[1].end, End::exited);
  EXPECT_EQ(result.ranks[1].exit_code, 7);
  EXPECT_EQ(result.ranks[1].output_tail, "out of luck");
  EXPECT_THAT(result.summary(), AllOf(HasSubstr("exited with code 7"), HasSubstr("  out of luck")));
}

TEST_F(LaunchFault, OfALongOutputTheLastWholeLinesAreShown) {
  const auto result = launch(ranks_that({"flood:5000;exit:1"}));
  const std::string& tail = result.ranks[0].output_tail;
  EXPECT_LE(tail.size(), 4096U);
  EXPECT_GT(tail.size(), 4000U);
  EXPECT_TRUE(tail.starts_with("line ")) << tail.substr(0, 20);
  EXPECT_TRUE(tail.ends_with("\nline 5000"));
}

TEST_F(LaunchFault, DeadlineIsBoundedThoughTermIsIgnored) {
  auto options =
      ranks_that({"ignore:15;pid:" + path("zero") + ";hang", "pid:" + path("one") + ";hang"});
  options.deadline = milliseconds(1'000);
  const auto result = launch(options);
  EXPECT_TRUE(result.deadline_expired);
  EXPECT_FALSE(result.completed());
  EXPECT_GE(result.wall, options.deadline + options.grace);  // TERM was ignored for the whole grace
  EXPECT_LT(result.wall, options.deadline + options.grace + seconds(2));
  EXPECT_EQ(result.root_cause, 0);
  EXPECT_EQ(result.ranks[0].end, End::deadline);
  EXPECT_EQ(result.ranks[0].signal, SIGKILL);
  EXPECT_EQ(result.ranks[1].end, End::deadline);
  EXPECT_EQ(result.ranks[1].signal, SIGTERM);
  for (const char* rank : {"zero", "one"}) EXPECT_EQ(kill(pid_in(rank), 0), -1) << rank;
}

TEST_F(LaunchFault, GrandchildrenThatLeftTheGroupAreEndedToo) {
  for (const char* end : {"exit:0", "raise:no", "hang"}) {
    for (const char* marker : {"a", "b"}) std::filesystem::remove(path(marker));
    auto options = ranks_that({"orphan:" + path("a") + ";orphan:" + path("b") + ";" + end});
    options.deadline = milliseconds(1'500);
    launch(options);
    for (const char* marker : {"a", "b"})
      EXPECT_TRUE(kill(pid_in(marker), 0) == -1 && errno == ESRCH) << end;
  }
  int subreaper = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  EXPECT_EQ(subreaper, 0);
}

TEST_F(LaunchFault, ChildrenThatTheLauncherAlreadyHadAreSpared) {
  const pid_t own = fork();
  if (own == 0) {
    pause();
    _exit(0);
  }
  launch(ranks_that({"", "raise:no"}));
  EXPECT_FALSE(gone(own));
  kill(own, SIGKILL);
  EXPECT_EQ(waitpid(own, nullptr, 0), own);
}

TEST_F(LaunchFault, RanksInheritNoDescriptorAndNoBlockedSignal) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  const int leaked = open("/dev/null", O_RDONLY);
  const int high = fcntl(leaked, F_DUPFD, 200);
  auto options = ranks_that({"await:/proc/self/fd/200"});
  options.deadline = milliseconds(700);
  const auto result = launch(options);
  close(leaked);
  close(high);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_TRUE(result.deadline_expired);  // It waited for descriptor 200 in vain.
  EXPECT_EQ(result.ranks[0].signal, SIGTERM);
}

TEST_F(LaunchFault, MissingProgramIsAClearError) {
  auto options = ranks_that({""});
  for (const std::string program : {"/nowhere/train", "no-such-program-anywhere", "/etc/passwd"}) {
    options.command = {program};
    try {
      launch(options);
      ADD_FAILURE() << program << " was started";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot start"), HasSubstr(program)));
    }
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

TEST_F(LaunchFault, RanksThatStartedAreEndedWhenALaterOneCannot) {
  std::filesystem::create_directory(path("rank_1.out"));  // cannot be opened for writing
  EXPECT_THROW(launch(ranks_that({"hang", "hang"})), Error);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST_F(LaunchFault, FolderWithSpacesAndQuotes) {
  const auto odd = folder_.path() / "it's a \"folder\" $HOME";
  std::filesystem::create_directory(odd);
  std::filesystem::permissions(odd, std::filesystem::perms::owner_all);
  std::filesystem::copy_file(FAULT_RANK, odd / "my 'rank'");
  auto options = ranks_that({"environment:LOCKSTEP_STORE", "raise:it's \"quoted\""});
  options.command.front() = (odd / "my 'rank'").string();
  options.folder = odd;
  const auto result = launch(options);
  EXPECT_EQ(read_file(odd / "rank_0.out"),
            "LOCKSTEP_STORE=file://" + (odd / "store").string() + "\n");
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks[1].error, "it's \"quoted\"");
}

}  // namespace
}  // namespace lockstep::launch
