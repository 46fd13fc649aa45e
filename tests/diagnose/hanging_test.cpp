// Jobs that stop, by why they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/trace/attempts.h>

#include <csignal>
#include <numeric>

#include "expect.h"
#include "hang_job.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::RankState;
using diagnose::State;
using ::testing::HasSubstr;

class Hanging : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  int last() const { return GetParam() - 1; }
  // So many steps, each with a broadcast and a reduction.
  std::vector<std::int64_t> everyone() const {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  HangJob steps(int count) const {
    HangJob job(GetParam());
    for (int step = 0; step < count; ++step)
      job.all(call("broadcast", 1)).all(call("allreduce", 9));
    return job;
  }
  // The others were ended by the launcher, or told of the collective that failed.
  void end_others(trace::Trace& trace, int rank) const {
    for (int other = 0; other < GetParam(); ++other)
      if (other != rank) end(trace, other, "raised", 0, true);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Hanging, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Hanging, NothingIsFoundInJobsThatEnd) {
  auto trace = steps(3).play();
  expect_nothing(trace);
  for (int rank = 0; rank < world_size(); ++rank) end(trace, rank, "completed");
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "no-progress"), State::clean);
  EXPECT_EQ(state(trace, "peer-dies"), State::clean);
}

TEST_P(Hanging, OneMoreCallIsNamedByTheRankThatMakesIt) {
  auto job = steps(2).only(0, call("barrier", 0));
  for (int step = 0; step < 2; ++step) job.all(call("broadcast", 1)).all(call("allreduce", 9));
  expect_only(job.play(), "rank-conditional-collective", {0}, 0);
  EXPECT_EQ(diagnose::diagnose(job.play()).findings[0].sequence, 5);
}

TEST_P(Hanging, OneMoreCallAtTheEndIsNamedWhereTheOthersEndedInOrder) {
  auto trace = steps(2).only(0, call("barrier", 0)).play();
  end_others(trace, last());
  for (auto& end : trace.ends) end.how = end.rank == 0 ? "raised" : "completed";
  if (world_size() == 2) trace.ends.push_back({.rank = 1, .how = "completed", .ended_ns = 1});
  for (auto& end : trace.ends) end.collective = end.rank == 0;
  expect_only(trace, "rank-conditional-collective", {0}, 0);
}

TEST_P(Hanging, AnotherOrderIsNamedByWhatBothSidesCallElsewhere) {
  auto job = steps(2);
  for (int rank = 0; rank < last(); ++rank)
    job.only(rank, call("broadcast", 1)).only(rank, call("allreduce", 9));
  job.only(last(), call("allreduce", 9)).only(last(), call("broadcast", 1));
  expect_only(job.play(), "order-mismatch", odd_one_out(world_size(), last()), 0);
}

// The others wait in the first of the two.
TEST_P(Hanging, TwoCallsOfOtherSizesThatOneRankMakesTheOtherWayRoundAreAnotherOrder) {
  auto job = steps(2);
  job.only(0, call("allreduce", 3)).only(0, call("allreduce", 2));
  for (int rank = 1; rank < last(); ++rank) job.only(rank, call("allreduce", 3));
  job.only(last(), call("allreduce", 2)).only(last(), call("allreduce", 3));
  expect_only(job.play(), "order-mismatch", odd_one_out(world_size(), last()), 0);
}

TEST_P(Hanging, ACallOfOtherSizesThatOneRankLeavesOutIsNoOtherOrder) {
  HangJob job(world_size());
  const auto first = call("allreduce", 3), second = call("allreduce", 2);
  for (int step = 0; step < 5; ++step) job.all(first).all(second).all(trace::Update{{0.1}});
  for (int rank = 0; rank < last(); ++rank) job.only(rank, first);
  if (world_size() > 2) job.only(0, second);
  job.only(last(), second).only(last(), trace::Update{{0.1}}).only(last(), first);
  const auto trace = job.play();
  EXPECT_EQ(state(trace, "order-mismatch"), State::clean);
  EXPECT_EQ(state(trace, "rank-conditional-collective"), State::found);
}

// Two folds, of which the first ends early on the last rank, or on all others: what begins the second one is no other
// order. The odd one is named: which of them is wrong cannot be told.
TEST_P(Hanging, WhereSomeHaveLeftTheLoopTheirNextCallIsNoOtherOrder) {
  for (const bool last_leaves : {true, false}) {
    HangJob job(world_size());
    job.all(call("broadcast", 1));
    for (int step = 0; step < 5; ++step) job.all(call("allreduce", 9)).all(trace::Update{{0.1}});
    for (int rank = 0; rank < world_size(); ++rank)
      job.only(rank, (rank == last()) == last_leaves ? call("broadcast", 1) : call("allreduce", 9));
    expect_only(job.play(), "rank-conditional-collective", odd_one_out(world_size(), last()), 5);
  }
}

TEST_P(Hanging, CallsOfWhichNoneIsOfEveryStepTellNoLoop) {
  HangJob job(world_size());
  job.all(call("broadcast", 1));
  for (int step = 0; step < 5; ++step) {
    job.all(call("allreduce", 9));
    if (step == 2) job.all(call("allgather", 1));
    job.all(trace::Update{{0.1}});
  }
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("allgather", 1));
  job.only(last(), call("broadcast", 1));
  expect_only(job.play(), "order-mismatch", odd_one_out(world_size(), last()), 5);
}

TEST_P(Hanging, AnotherOrderWithinALoopIsNoRankThatHasLeftIt) {
  HangJob job(world_size());
  const auto first = call("broadcast", 1), second = call("allreduce", 9);
  for (int step = 0; step < 5; ++step) job.all(first).all(second).all(trace::Update{{0.1}});
  for (int rank = 0; rank < last(); ++rank) job.only(rank, first).only(rank, second);
  job.only(last(), second).only(last(), first);
  expect_only(job.play(), "order-mismatch", odd_one_out(world_size(), last()), 5);
}

TEST_P(Hanging, OperationsThatNobodyKnowsAreLeftUnnamed) {
  HangJob job(world_size());
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("gather", 1));
  job.only(last(), call("scatter", 1));
  const auto findings = diagnose::diagnose(job.play()).findings;
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].pitfall, "collective-mismatch");
  EXPECT_EQ(findings[1].pitfall, "no-progress");
}

TEST_P(Hanging, KilledRanksAreNamedWithTheSignalAndTheirLastCall) {
  auto job = steps(2);
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("broadcast", 1));
  auto trace = job.play();
  trace.ranks[last()].closed = false;
  EXPECT_EQ(state(trace, "peer-dies"), State::not_triggered) << "nobody saw how the ranks ended";
  expect_only(trace, "no-progress", {last()}, 0);
  EXPECT_THAT(evidence(trace), HasSubstr("has not arrived at broadcast number 5; its last was "
                                         "allreduce number 4"));
  end(trace, last(), "signalled", SIGKILL);
  end_others(trace, last());
  expect_only(trace, "peer-dies", {last()}, 0);
  EXPECT_THAT(evidence(trace), HasSubstr("signal 9 (SIGKILL) before broadcast number 5"));
}

TEST_P(Hanging, FrozenRanksAreNotDead) {
  auto job = steps(1);
  for (int rank = 1; rank < world_size(); ++rank) job.only(rank, call("broadcast", 1));
  auto trace = job.play();
  end(trace, 0, "signalled", SIGSTOP);
  end_others(trace, 0);
  expect_only(trace, "no-progress", {0}, 0);
  EXPECT_THAT(evidence(trace), HasSubstr("rank 0 was frozen by signal 19 (SIGSTOP)"));
}

TEST_P(Hanging, RaisingRanksAreNamedAndTheirPeersAreNot) {
  auto job = steps(1);
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("broadcast", 1));
  auto trace = job.play();
  end(trace, last(), "raised");
  end_others(trace, last());
  expect_only(trace, "one-rank-raises", {last()}, 0);
}

TEST_P(Hanging, WhereEachRaisesForItselfThatIsSaid) {
  auto trace = steps(2).play();
  for (int rank = 0; rank < world_size(); ++rank) end(trace, rank, "raised");
  expect_only(trace, "every-rank-raises", all_ranks(world_size()), -2);
  trace.ends.back().collective = true;
  EXPECT_EQ(state(trace, "every-rank-raises"), State::clean);
}

TEST_P(Hanging, RanksThatLeaveWithoutAWordAreNamed) {
  for (const std::string how : {"exited", "completed"}) {
    auto job = steps(1);
    for (int rank = 0; rank < last(); ++rank) job.only(rank, call("broadcast", 1));
    auto trace = job.play();
    end(trace, last(), how);
    end_others(trace, last());
    if (how == "exited") {
      expect_only(trace, "no-progress", {last()}, 0);
      EXPECT_THAT(evidence(trace), HasSubstr("exited with code 3 before broadcast number 3"));
    } else {
      EXPECT_EQ(diagnose::stall_of(trace)->culprits().at(0)->state, RankState::exited);
    }
  }
}

TEST_P(Hanging, AllAbsentRanksAreNamed) {
  auto job = steps(1);
  job.only(0, call("broadcast", 1));
  for (const bool give_up : {true, false}) {
    job.give_up = give_up;
    auto trace = job.play();
    for (int rank = 0; rank < world_size(); ++rank) end(trace, rank, "deadline");
    std::vector<int> others;
    for (int rank = 1; rank < world_size(); ++rank) others.push_back(rank);
    expect_only(trace, "no-progress", others, 0);
    EXPECT_THAT(evidence(trace), HasSubstr("has not arrived at broadcast number 3, alive"));
  }
}

// As where the network between them drops everything.
TEST_P(Hanging, WhereAllWaitTheRanksAreNotToBlame) {
  auto trace = steps(2).play();
  for (auto& rank : trace.ranks) {
    auto& last = rank.events.back();
    last.left_ns = last.time_ns + 2'000'000'000;
    last.change<trace::Collective>()->failed = 1;
  }
  expect_only(trace, "no-progress", all_ranks(world_size()), 0);
  EXPECT_THAT(evidence(trace), HasSubstr("every rank has come to it"));
}

TEST_P(Hanging, WhoWaitsForAMomentDoesNotHang) {
  auto job = steps(1);
  job.only(0, call("broadcast", 1));
  job.give_up = false;
  // Ended at a deadline while one rank was a little ahead.
  expect_nothing(job.play());
}

TEST_P(Hanging, LateRanksAreToldFromAbsentOnes) {
  auto job = steps(3);
  job.late = last();
  expect_only(job.play(), "slow-rank", {last()}, 0);
  job.late = 0;
  expect_only(job.play(), "slow-rank", {0}, 0);
}

TEST_P(Hanging, RankZerosLongWorkIsNamedWhereItIsWhatMadeItLate) {
  for (const trace::Payload& work :
       {trace::Payload(trace::PassBegin{"evaluation", 0}),
        trace::Payload(trace::CheckpointFile{.action = "save_begin", .file = 7})}) {
    HangJob job(world_size());
    job.all(call("broadcast", 1)).only(0, work);
    if (std::holds_alternative<trace::PassBegin>(work))
      job.only(0, trace::PassEnd{"evaluation", 0, 1});
    job.all(call("allreduce", 9));
    job.late = 0;
    const auto trace = job.play();
    EXPECT_EQ(state(trace, "rank-zero-long-work"), State::found);
    EXPECT_EQ(state(trace, "slow-rank"), State::clean);
  }
}

TEST_P(Hanging, DecisionsThatDifferAreNamedByTheRanksThatStop) {
  auto job = steps(1).all(trace::Decision{"stop", 0});
  for (int rank = 0; rank < world_size(); ++rank)
    job.only(rank, trace::Decision{"stop", rank == last()});
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("allreduce", 9));
  job.only(last(), call("barrier", 0));
  expect_only(job.play(), "local-early-stop", {last()}, 0);
  auto agreed = steps(1).all(trace::Decision{"stop", 0}).all(trace::Decision{"stop", 1});
  agreed.all(call("barrier", 0));
  expect_nothing(agreed.play());
  auto other = steps(1);
  for (int rank = 0; rank < world_size(); ++rank)
    other.only(rank, trace::Decision{"leave the batch out", rank});
  expect_nothing(other.all(call("allreduce", 9)).play());
}

TEST_P(Hanging, EvaluationsOfOneRankAreNamedByTheirFirstCall) {
  auto job = HangJob(world_size()).all(trace::PassBegin{"train", 0});
  job.all(call("broadcast", 1)).all(call("allreduce", 9));
  job.only(0, trace::PassBegin{"evaluation", 0}).only(0, call("broadcast", 1));
  job.only(0, trace::PassEnd{"evaluation", 0, 1});
  job.all(call("broadcast", 1)).all(call("allreduce", 9));
  expect_only(job.play(), "evaluation-through-wrapper-on-one-rank", {0}, 0);
  EXPECT_EQ(diagnose::diagnose(job.play()).findings[0].sequence, 3);
  auto together = HangJob(world_size()).all(trace::PassBegin{"train", 0});
  together.all(trace::PassBegin{"evaluation", 0}).all(call("broadcast", 1));
  together.all(trace::PassEnd{"evaluation", 0, 1}).all(call("allreduce", 9));
  EXPECT_EQ(state(together.play(), "evaluation-through-wrapper-on-one-rank"), State::clean);
}

// All evaluate, and one rank reduces its score alone: the others' next call is of their next pass.
TEST_P(Hanging, ACallOfOneRankInAnEvaluationOfAllIsNoEvaluationOfOneRank) {
  auto job = HangJob(world_size()).all(trace::PassBegin{"train", 0}).all(call("allreduce", 9));
  job.all(trace::PassEnd{"train", 0, 1}).all(trace::PassBegin{"evaluation", 0});
  auto score = call("allreduce", 2);
  score.dtype = "double";
  job.only(0, score).all(trace::PassEnd{"evaluation", 0, 1}).all(trace::PassBegin{"train", 1});
  job.all(call("allreduce", 9));
  const auto trace = job.play();
  EXPECT_EQ(state(trace, "evaluation-through-wrapper-on-one-rank"), State::clean);
  EXPECT_EQ(state(trace, "rank-conditional-collective"), State::found);
  EXPECT_EQ(state(trace, "dtype-mismatch"), State::clean);
}

TEST_P(Hanging, EvaluationsThatADeadRankDidNotComeToAreNotAlone) {
  auto job = HangJob(world_size()).all(trace::PassBegin{"train", 0}).all(call("allreduce", 9));
  job.all(trace::PassEnd{"train", 0, 1});
  for (int rank = 0; rank < last(); ++rank)
    job.only(rank, trace::PassBegin{"evaluation", 0}).only(rank, call("allreduce", 2));
  auto trace = job.play();
  end(trace, last(), "signalled", SIGABRT);
  EXPECT_EQ(state(trace, "evaluation-through-wrapper-on-one-rank"), State::clean);
}

// Those collectives, on any rank, are never left.
template <class Which>
void never_leave(trace::Trace& trace, Which which) {
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (const auto* made = event.as<trace::Collective>(); made && which(*made)) event.left_ns = 0;
}

TEST_P(Hanging, AGatherOfUnequalSizesIsNamedWhereARankDiesInIt) {
  auto job = steps(1);
  for (int rank = 0; rank < world_size(); ++rank)
    job.only(rank, call("allgather", rank == last() ? 7 : 8));
  auto whole = job.play();
  EXPECT_EQ(state(whole, "shape-mismatch"), State::clean);  // some backends take it
  never_leave(whole, [](const auto& made) { return made.op == "allgather"; });
  whole.ranks[last()].closed = false;
  end(whole, last(), "signalled", SIGSEGV);
  end_others(whole, last());
  EXPECT_EQ(state(whole, "shape-mismatch"), State::found);
  for (auto& end : whole.ends)
    if (end.rank == last()) end.signal = SIGKILL;  // by somebody else
  EXPECT_EQ(state(whole, "shape-mismatch"), State::clean);
}

// Of a ring a rank may be through, and call the next one, when another one dies.
TEST_P(Hanging, AGatherOfUnequalSizesIsNamedWhereOthersAreThrough) {
  auto job = steps(1);
  for (int rank = 0; rank < world_size(); ++rank)
    job.only(rank, call("allgather", rank == last() ? 7 : 8));
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("allgather", 8));
  auto trace = job.play();
  for (auto& event : trace.ranks[last()].events)
    if (const auto* made = event.as<trace::Collective>(); made && made->op == "allgather")
      event.left_ns = 0;
  trace.ranks[last()].closed = false;
  const auto unheard_of = trace;  // no launcher has told how it ended
  end(trace, last(), "signalled", SIGSEGV);
  end_others(trace, last());
  EXPECT_EQ(state(trace, "shape-mismatch"), State::found);
  for (const int signal : {SIGKILL, SIGTERM, SIGSTOP}) {  // by somebody else
    for (auto& end : trace.ends)
      if (end.rank == last()) end.signal = signal;
    EXPECT_EQ(state(trace, "shape-mismatch"), State::clean);
  }
  EXPECT_EQ(state(unheard_of, "shape-mismatch"), State::found);
}

TEST_P(Hanging, AGatherOfUnequalSizesThatHasGoneWellBeforeIsNot) {
  HangJob job(world_size());
  for (int times = 0; times < 2; ++times)
    for (int rank = 0; rank < world_size(); ++rank)
      job.only(rank, call("allgather", rank == last() ? 7 : 8));
  auto trace = job.play();
  never_leave(trace, [](const auto& made) { return made.sequence == 2; });
  trace.ranks[last()].closed = false;
  end(trace, last(), "signalled", SIGSEGV);
  end_others(trace, last());
  EXPECT_EQ(state(trace, "shape-mismatch"), State::clean);
}

TEST_P(Hanging, ResultsUsedTooEarlyAreNamed) {
  HangJob job(world_size());
  for (int rank = 0; rank < world_size(); ++rank)
    job.only(rank, trace::AsyncResult{"sum", "used", rank == 0 ? 1U : 2U})
        .only(rank, trace::AsyncResult{"sum", "waited", 2});
  expect_only(job.play(), "async-work-not-waited", {0}, 0);
  auto right = HangJob(world_size()).all(trace::AsyncResult{"sum", "used", 2});
  expect_nothing(right.all(trace::AsyncResult{"sum", "waited", 2}).play());
  EXPECT_EQ(state(HangJob(world_size()).all(trace::AsyncResult{"sum", "used", 2}).play(),
                  "async-work-not-waited"),
            State::not_triggered);
}

TEST_P(Hanging, GroupsThatNotAllMakeAreNamedByTheRanksThatDoNot) {
  HangJob skips(world_size());
  for (int rank = 0; rank < last(); ++rank) skips.only(rank, trace::Group{"join", "0", everyone()});
  expect_only(skips.play(), "rank-skips-init", {last()}, -1);

  HangJob job(world_size());
  job.all(trace::Group{"join", "0", everyone()}).all(trace::Group{"joined", "0", everyone()});
  auto whole = job;
  job.only(0, trace::Group{"join", "1", {0}});
  std::vector<int> others;
  for (int rank = 1; rank < world_size(); ++rank) others.push_back(rank);
  expect_only(job.play(), "subgroup-created-by-members-only", others, -1);
  whole.all(trace::Group{"join", "1", {0}}).all(trace::Group{"joined", "1", {0}});
  expect_nothing(whole.play());
}

// A rank that left no trace never began, where all of them are on one machine.
TEST_P(Hanging, ARankWithoutATraceSkippedTheStartOnItsMachineAlone) {
  for (const int on_this_machine : {world_size(), 1}) {
    HangJob job(world_size());
    for (int rank = 0; rank < last(); ++rank)
      job.only(rank, trace::Placement{.local_world_size = on_this_machine})
          .only(rank, trace::Group{"join", "0", everyone()});
    auto trace = job.play();
    trace.ranks.pop_back();
    if (on_this_machine == 1)
      expect_nothing(trace);
    else
      expect_only(trace, "rank-skips-init", {last()}, -1);
  }
}

// Each rank numbers the groups that it makes.
TEST_P(Hanging, RanksThatMakeTheNextGroupInAnothersPlaceAreNamed) {
  HangJob job(world_size());
  job.all(trace::Group{"join", "0", everyone()}).all(trace::Group{"joined", "0", everyone()});
  std::vector<int> others;
  for (int rank = 1; rank < world_size(); ++rank) {
    others.push_back(rank);
    job.only(rank, trace::Group{"join", "1", everyone()})
        .only(rank, trace::Group{"joined", "1", everyone()});
  }
  job.only(0, trace::Group{"join", "1", {0}}).only(0, trace::Group{"joined", "1", {0}});
  job.only(0, trace::Group{"join", "2", everyone()});
  expect_only(job.play(), "subgroup-created-by-members-only", others, -1);
}

// After its groups were let go of, a job may number others alike.
TEST_P(Hanging, GroupsOfALaterLifeAreOthers) {
  HangJob job(world_size());
  for (int rank = 0; rank < world_size(); ++rank)
    for (const auto& members : {std::vector<std::int64_t>{0}, everyone()}) {
      if (rank == last() && members.size() == 1) {
        job.only(rank, trace::Group{"leave", "0", everyone()});
        continue;
      }
      job.only(rank, trace::Group{"join", "1", members})
          .only(rank, trace::Group{"joined", "1", members})
          .only(rank, trace::Group{"leave", "0", everyone()});
    }
  expect_nothing(job.play());
}

// It may have failed before the others had come.
TEST_P(Hanging, ARankThatFailsAtOnceWaitsForNobody) {
  auto trace = HangJob(world_size()).only(0, trace::Group{"join", "0", everyone()}).play();
  end(trace, 0, "raised");
  trace.ends.back().ended_ns = 1'000'000;
  expect_nothing(trace);
}

TEST_P(Hanging, ARankThatIsGoneWithoutAWordHasDied) {
  auto trace = steps(2).only(0, call("allreduce", 9)).play();
  end(trace, last(), "signalled", 0);
  end_others(trace, last());
  expect_only(trace, "peer-dies", {last()}, 0);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("is gone without a word"),
            std::string::npos);
}

TEST_P(Hanging, EarlierAttemptsAreOver) {
  auto job = steps(2);
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("broadcast", 1));
  auto first = job.play();
  end(first, last(), "signalled", SIGKILL);
  end_others(first, last());
  auto second = steps(2).play();
  for (int rank = 0; rank < world_size(); ++rank) end(second, rank, "completed");
  expect_nothing(trace::concatenate({first, second}));
  expect_only(trace::concatenate({second, first}), "peer-dies", {last()}, 2);
}

}  // namespace
}  // namespace lockstep::simulated
