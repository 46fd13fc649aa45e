// What supervise() says of ranks that stop, by their flight boards and their ends.
#include <gmock/gmock.h>
#include <lockstep/base/error.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/launch/supervise.h>

#include "launch_fixture.h"

namespace lockstep::launch {
namespace {

using diagnose::RankState;
using launch::gone;
using launch::LaunchFault;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{600};
constexpr seconds kBound{2};  // of a verdict, from when it can be known

class Supervise : public LaunchFault {
 protected:
  // Each rank records; all meet, complete one all-reduce, and then do what their script says.
  static std::vector<std::string> recorded(const std::filesystem::path& folder,
                                           std::vector<std::string> scripts) {
    for (auto& script : scripts)
      script = "trace:" + folder.string() + ";meet;enter:allreduce;leave;" + script;
    return scripts;
  }
  Supervised of(std::vector<std::string> scripts) {
    auto job = ranks_that(recorded(folder_.path(), std::move(scripts)));
    return supervise({.job = job, .patience = kPatience});
  }
  static std::vector<int> culprits(const Supervised& result) {
    std::vector<int> ranks;
    if (result.stall)
      for (const auto* rank : result.stall->culprits()) ranks.push_back(rank->rank);
    return ranks;
  }
  static RankState state(const Supervised& result) {
    return result.stall.value().culprits().at(0)->state;
  }
  static std::string text(const Supervised& result) {
    return result.stall ? diagnose::to_text(*result.stall) : "no stall";
  }
  std::vector<std::string> named() const {
    std::vector<std::string> slugs;
    for (const auto& finding : diagnose::diagnose(trace::read(folder_.path())).findings)
      slugs.push_back(finding.pitfall);
    return slugs;
  }
};

TEST_F(Supervise, JobsThatEndStallNowhere) {
  const auto result = of({"enter:broadcast;leave;close", "enter:broadcast;leave;close"});
  EXPECT_TRUE(result.launch.completed()) << result.launch.summary();
  EXPECT_FALSE(result.stall) << text(result);
  ASSERT_EQ(result.trace.ends.size(), 2U);
  EXPECT_EQ(result.trace.ends[1].how, "completed");
  EXPECT_TRUE(named().empty());
}

TEST_F(Supervise, AbsentRanksAreNamedSoonAfterThePatienceIsOver) {
  const auto result = of(
      {"enter:broadcast;hang", "pid:" + path("absent") + ";hang", "enter:broadcast;hang", "hang"});
  EXPECT_TRUE(result.launch.stalled);
  EXPECT_FALSE(result.launch.completed());
  EXPECT_LT(result.launch.wall, kPatience + kBound);
  EXPECT_EQ(culprits(result), (std::vector<int>{1, 3})) << text(result);
  EXPECT_EQ(state(result), RankState::absent);
  EXPECT_THAT(text(result), HasSubstr("rank 1 has not arrived at broadcast number 2, alive; its "
                                      "last was allreduce number 1"));
  EXPECT_THAT(text(result), HasSubstr("ranks 0 and 2 wait in broadcast number 2"));
  EXPECT_THAT(result.launch.summary(), HasSubstr("stalled"));
  EXPECT_TRUE(gone(pid_in("absent")));
  EXPECT_EQ(named(), std::vector<std::string>{"no-progress"});
}

TEST_F(Supervise, RankZeroIsNamedAsAnyOther) {
  const auto result = of({"hang", "enter:broadcast;hang", "enter:broadcast;hang"});
  EXPECT_EQ(culprits(result), std::vector<int>{0}) << text(result);
}

TEST_F(Supervise, BusyJobsAreLeftAlone) {
  const auto result = of({"work:60", "work:60"});  // 1.2 s, each collective 20 ms
  EXPECT_TRUE(result.launch.completed()) << result.launch.summary() << text(result);
}

TEST_F(Supervise, FrozenRanksAreNamedWithTheirState) {
  const auto result = of({"enter:broadcast;hang", "enter:broadcast;signal:19"});
  EXPECT_LT(result.launch.wall, kPatience + kBound);
  EXPECT_EQ(culprits(result), std::vector<int>{1}) << text(result);
  EXPECT_EQ(state(result), RankState::stopped);
  EXPECT_THAT(text(result),
              HasSubstr("rank 1 was frozen by signal 19 (SIGSTOP) in broadcast number 2"));
}

TEST_F(Supervise, KilledRanksAreNamedWithTheirLastCollective) {
  for (const std::string fatal : {"signal:9", "segfault"}) {
    SCOPED_TRACE(fatal);
    const TemporaryFolder other("lockstep-fault");
    auto job =
        ranks_that(recorded(other.path(), {"enter:broadcast;hang", fatal, "enter:broadcast;hang"}));
    job.folder = other.path();
    const auto result = supervise({.job = job, .patience = seconds(10)});
    EXPECT_LT(result.launch.wall, kBound);
    EXPECT_EQ(culprits(result), std::vector<int>{1}) << text(result);
    EXPECT_EQ(state(result), RankState::dead);
    EXPECT_THAT(text(result),
                HasSubstr("before broadcast number 2; its last was allreduce number 1"));
  }
}

TEST_F(Supervise, ExitsAreNamedByTheirCode) {
  const auto early = of({"enter:broadcast;hang", "close;exit:0"});
  EXPECT_EQ(state(early), RankState::exited) << text(early);
  EXPECT_THAT(text(early), HasSubstr("rank 1 exited in order before broadcast number 2"));
  EXPECT_EQ(named(), std::vector<std::string>{"rank-conditional-collective"});
}

TEST_F(Supervise, ExitsWithoutAWordAreNamedByTheirCode) {
  const auto result = of({"enter:broadcast;hang", "exit:7"});
  EXPECT_EQ(state(result), RankState::failed) << text(result);
  EXPECT_THAT(text(result), HasSubstr("exited with code 7 before broadcast number 2"));
}

TEST_F(Supervise, ExceptionsOfOneRankAreNamed) {
  const auto result = of({"enter:broadcast;fail;collective:closed by peer", "raise:disk on fire"});
  EXPECT_EQ(result.launch.root_cause, 1);
  EXPECT_EQ(state(result), RankState::raised) << text(result);
  EXPECT_EQ(named(), std::vector<std::string>{"one-rank-raises"});
}

TEST_F(Supervise, OtherOperationsAreNamedWithBothSides) {
  const auto result = of({"enter:broadcast;hang", "enter:barrier;hang", "enter:broadcast;hang"});
  EXPECT_EQ(culprits(result), std::vector<int>{1}) << text(result);
  EXPECT_EQ(state(result), RankState::mismatched);
  EXPECT_THAT(text(result), HasSubstr("rank 1 entered barrier float32 4 as number 2"));
}

TEST_F(Supervise, TheDeadlineOfTheJobHoldsWithoutPatience) {
  auto job = ranks_that(recorded(folder_.path(), {"enter:broadcast;hang", "hang"}));
  job.deadline = milliseconds(2'000);
  const auto result = supervise({.job = job});
  EXPECT_TRUE(result.launch.deadline_expired);
  EXPECT_EQ(culprits(result), std::vector<int>{1}) << text(result);
}

TEST_F(Supervise, PatienceThatNoDetectorSharesIsRefused) {
  EXPECT_THROW(supervise({.job = ranks_that({""}), .patience = milliseconds(100)}), UsageError);
}

TEST_F(Supervise, RanksThatRecordNothingAreSupervisedAllTheSame) {
  const auto result = supervise({.job = ranks_that({"", "exit:3"}), .patience = kPatience});
  EXPECT_EQ(result.launch.root_cause, 1);
  EXPECT_FALSE(result.stall);
}

TEST_F(Supervise, DamagedTracesAreToldOfWhenTheJobIsOver) {
  write_file(path("rank_1.trace"), "no trace");
  const auto script = "trace:" + folder_.path().string() + ";enter:allreduce;leave";
  try {
    supervise({.job = ranks_that({script, ""}), .patience = kPatience});
    ADD_FAILURE() << "it was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank_1.trace"));
  }
}

}  // namespace
}  // namespace lockstep::launch
