// Jobs of several attempts.
#include <gtest/gtest.h>
#include <lockstep/trace/attempts.h>

#include <csignal>

#include "expect.h"
#include "hang_job.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Restarts : public testing::TestWithParam<int> {
 protected:
  struct Plan {
    std::int64_t restart_count = 0, max_restarts = 1;
    bool resumes = false;
    std::vector<std::int64_t> epochs = {};  // trained, and saved after each
    bool saves = true;
    bool tells_ends = true;  // of passes
    bool dies = false;       // the last rank, in the epoch behind them
  };

  trace::Trace attempt(const Plan& plan) const {
    HangJob job(GetParam());
    job.all(trace::Attempt{plan.restart_count, plan.max_restarts});
    if (plan.resumes) job.all(trace::TrainingState{.moment = "resumed"});
    for (const auto epoch : plan.epochs) {
      job.all(trace::PassBegin{"train", epoch}).all(call("allreduce", 9));
      if (plan.tells_ends) job.all(trace::PassEnd{"train", epoch, 1});
      if (plan.saves) job.all(trace::TrainingState{.moment = "saved"});
    }
    const int last = GetParam() - 1;
    if (plan.dies)
      for (int rank = 0; rank < last; ++rank) job.only(rank, call("allreduce", 9));
    auto trace = job.play();
    for (int rank = 0; rank < GetParam(); ++rank)
      if (plan.dies && rank == last)
        end(trace, rank, "signalled", SIGKILL);
      else
        end(trace, rank, plan.dies ? "raised" : "completed", 0, plan.dies);
    return trace;
  }
  trace::Trace job(const Plan& first, const Plan& second) const {
    return trace::concatenate({attempt(first), attempt(second)});
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Restarts, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Restarts, WithoutALoadAreNamedWhereTheyTrainAgainWhatWasSaved) {
  expect_only(job({.epochs = {0, 1}, .dies = true}, {.restart_count = 1, .epochs = {0, 1, 2}}),
              "restart-without-resume", all_ranks(GetParam()), 2);
  const auto trace =
      job({.epochs = {0, 1}, .dies = true}, {.restart_count = 1, .epochs = {0, 1, 2}});
  EXPECT_EQ(diagnose::diagnose(trace).findings[0].evidence,
            "attempt_1 began with epoch 0 and loaded nothing, though the state after epoch 1 had "
            "been saved");
}

TEST_P(Restarts, OfPassesWithoutAnEndAreNamedByThoseThatAnotherFollowed) {
  expect_only(job({.epochs = {0, 1}, .tells_ends = false, .dies = true},
                  {.restart_count = 1, .epochs = {0, 1, 2}}),
              "restart-without-resume", all_ranks(GetParam()), 2);
}

TEST_P(Restarts, ThatGoOnAreRight) {
  expect_nothing(job({.epochs = {0, 1}, .dies = true},
                     {.restart_count = 1, .resumes = true, .epochs = {2, 3}}));
}

// The last rank begins a pass and dies in it; the others are ended before they begin theirs.
TEST_P(Restarts, AreNotPairedWithPassesOfAnEarlierAttempt) {
  const int world_size = GetParam();
  const auto attempt = [&](std::int64_t number, const std::vector<std::int64_t>& epochs) {
    HangJob job(world_size);
    job.all(trace::Attempt{number, 1});
    job.all(trace::Dataset{"train", 8 * world_size, 8 * world_size, 1, 1, 1});
    if (number == 1) job.all(trace::TrainingState{.moment = "resumed"});
    for (const auto epoch : epochs) {
      job.all(trace::SetEpoch{epoch}).all(trace::PassBegin{"train", epoch});
      for (int rank = 0; rank < world_size; ++rank) {
        std::vector<std::int64_t> ids;  // every epoch deals the ranks' shards in another turn
        for (std::int64_t i = 0; i < 8; ++i)
          ids.push_back((i * 5 % 8) * world_size + (rank + epoch) % world_size);
        job.only(rank, trace::Samples{"train", ids});
      }
      job.all(trace::PassEnd{"train", epoch, 1});
    }
    if (number == 0) job.only(world_size - 1, trace::PassBegin{"train", 2});
    return job.play();
  };
  const auto trace = trace::concatenate({attempt(0, {0, 1}), attempt(1, {2, 3})});
  EXPECT_EQ(state(trace, "epoch-differs-by-rank"), State::clean);
}

TEST_P(Restarts, BeforeAnythingWasSavedBeginAtTheStart) {
  expect_nothing(job({.dies = true}, {.restart_count = 1, .epochs = {0, 1}}));
  const auto trace = job({.epochs = {0}, .saves = false, .dies = true},
                         {.restart_count = 1, .epochs = {0, 1}, .saves = false});
  EXPECT_EQ(state(trace, "restart-without-resume"), State::not_triggered);
}

TEST_P(Restarts, AreToldOfOnce) {
  EXPECT_EQ(state(attempt({.epochs = {0, 1}}), "restart-without-resume"), State::not_triggered);
}

TEST_P(Restarts, ThatDoNotComeAreNamedWhereTheJobCouldHaveGoneOn) {
  expect_only(attempt({.max_restarts = 0, .epochs = {0, 1}, .dies = true}),
              "restart-expected-by-default", all_ranks(GetParam()), -1);
  // It would have been started again; it saves nothing; nothing fails.
  for (const auto& plan : {Plan{.epochs = {0, 1}, .dies = true},
                           Plan{.max_restarts = 0, .epochs = {0, 1}, .saves = false, .dies = true},
                           Plan{.max_restarts = 0, .epochs = {0, 1}}})
    EXPECT_EQ(state(attempt(plan), "restart-expected-by-default"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
