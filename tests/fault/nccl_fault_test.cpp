// Row 12 and what else NCCL is promised: faults of ranks over NCCL. They run where there is a GPU, with ranks that
// share it where it is the only one; elsewhere they are skipped.
#include "../support/gpus.h"
#include "gloo_fixture.h"

namespace lockstep::launch {
namespace {

using diagnose::RankState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// T. A rank's first step on a GPU, and NCCL's set-up, take seconds; both count as waiting for it.
constexpr std::chrono::seconds kNcclTimeout{12};

class NcclFault : public GlooFault {
 protected:
  void SetUp() override {
    if (const auto why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    share_ = gpu::gpus_here() < 2;
  }
  // All meet, make a group and complete one all-reduce, and then do what their script says.
  // The supervisor speaks when nothing has moved for `patience`.
  Supervised over_nccl(std::vector<std::string> scripts,
                       std::chrono::milliseconds patience = kNcclTimeout +
                                                            std::chrono::seconds(1)) {
    for (auto& script : scripts) script = "meet;init;allreduce;" + script;
    auto job = job_of(std::move(scripts));
    job.deadline = std::chrono::seconds(60);
    job.environment["LOCKSTEP_FAULT_BACKEND"] = "nccl";
    job.environment["LOCKSTEP_FAULT_SHARE_GPU"] = share_ ? "1" : "0";
    job.environment["LOCKSTEP_FAULT_TIMEOUT_MS"] =
        std::to_string(std::chrono::milliseconds(kNcclTimeout).count());
    return run(job, patience);
  }
  static bool lacks_the_library(const Supervised& result) {
    return result.launch.ranks[0].error.find("not part of this build") != std::string::npos;
  }

 private:
  bool share_ = false;
};

// Who waits is told so by its own error, not ended by NCCL's watchdog: it would look like the one that died.
TEST_F(NcclFault, ARankThatSkipsACollective) {
  const auto result = over_nccl({"allreduce", "hang"});
  if (lacks_the_library(result)) GTEST_SKIP() << result.launch.ranks[0].error;
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::absent))) << text(result);
  EXPECT_LT(took(result), kNcclTimeout + std::chrono::seconds(2));
  EXPECT_THAT(text(result), HasSubstr("rank 1 has not arrived at allreduce number 2, alive"));
  ASSERT_EQ(result.launch.ranks[0].end, launch::End::raised) << text(result);
  EXPECT_TRUE(result.launch.ranks[0].collective) << text(result);
}

TEST_F(NcclFault, ARankThatIsKilled) {
  const auto result = over_nccl({"allreduce", "signal:9"});
  if (lacks_the_library(result)) GTEST_SKIP() << result.launch.ranks[0].error;
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::dead))) << text(result);
  EXPECT_EQ(result.launch.root_cause, 1) << text(result);
}

// Of an operation that nobody waited for, the group's end tells: nobody trains on without a word.
TEST_F(NcclFault, AnUnseenFailureComesOutWhenTheGroupIsLeft) {
  // It may take T and the 5 s that an abort is given, and is to speak before the supervisor does.
  const auto result =
      over_nccl({"begin;leave", "hang"}, kNcclTimeout + std::chrono::seconds(5 + 5));
  if (lacks_the_library(result)) GTEST_SKIP() << result.launch.ranks[0].error;
  EXPECT_THAT(culprits(result), ElementsAre(Pair(1, RankState::absent))) << text(result);
  ASSERT_EQ(result.launch.ranks[0].end, launch::End::raised) << text(result);
  EXPECT_THAT(result.launch.ranks[0].error, HasSubstr("an operation before it timed out"));
}

TEST_F(NcclFault, NothingIsWrongWithRanksThatAllCome) {
  const auto result = over_nccl({"sum;broadcast;sum;leave", "sum;broadcast;sum;leave"});
  if (lacks_the_library(result)) GTEST_SKIP() << result.launch.ranks[0].error;
  EXPECT_TRUE(result.launch.completed()) << text(result);
}

}  // namespace
}  // namespace lockstep::launch
