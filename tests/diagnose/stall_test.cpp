// Where a job stalls, in jobs that are not of one group, one attempt and one moment: who is to blame, and
// when nobody is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/trace/attempts.h>

#include <csignal>

#include "expect.h"
#include "hang_job.h"
#include "job.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using ::testing::HasSubstr;

struct Entered {
  int rank;
  std::string group;
  std::int64_t sequence, at_ms, left_ms;  // left 0: still inside
  bool failed = false;
  std::string op = "allreduce";
  std::int64_t size = 9, root = -1;
};

void enter(trace::Trace& trace, const Entered& call) {
  auto& rank = trace.ranks.at(static_cast<std::size_t>(call.rank));
  record(rank, 0,
         trace::Collective{.failed = call.failed,
                           .sequence = call.sequence,
                           .group = call.group,
                           .op = call.op,
                           .root = call.root,
                           .dtype = "float",
                           .sizes = {call.size}},
         call.left_ms * kMillisecond);
  rank.events.back().time_ns = call.at_ms * kMillisecond;
}

void end_at(trace::Trace& trace, int rank, const std::string& how, std::int64_t at_ms,
            int signal = 0, bool collective = false) {
  end(trace, rank, how, signal, collective);
  trace.ends.back().ended_ns = at_ms * kMillisecond;
}

trace::Trace open_traces(int world_size) {
  auto trace = empty_trace(world_size);
  for (auto& rank : trace.ranks) rank.closed = false;
  return trace;
}

trace::Trace running(int world_size) {
  auto trace = open_traces(world_size);
  for (auto& rank : trace.ranks) rank.runs = true;
  return trace;
}

std::string told(const trace::Trace& trace) {
  std::string text;
  for (const auto& finding : diagnose::diagnose(trace).findings)
    text += finding.pitfall + ": " + finding.evidence + "\n";
  return text;
}

std::string place(const trace::Trace& trace) {
  const auto found = diagnose::stall_of(trace);
  return found ? diagnose::to_text(*found) : "nowhere";
}

TEST(Stall, AGroupOfSomeRanksThatIsUsedFirstIsNotTheWorld) {
  auto trace = open_traces(4);
  for (int rank = 0; rank < 2; ++rank) enter(trace, {rank, "pair", 1, 10, 11});
  for (int rank = 0; rank < 4; ++rank) {
    enter(trace, {rank, "world", 1, 20, 21});
    end_at(trace, rank, "completed", 30);
  }
  expect_nothing(trace);
  // And its stall is its own ranks' business.
  enter(trace, {0, "pair", 2, 30, 0});
  for (auto& end : trace.ends) end.how = "deadline", end.ended_ns = 5 * kSecond;
  EXPECT_THAT(place(trace), HasSubstr("rank 1 has not arrived at allreduce number 2"));
  EXPECT_THAT(place(trace), Not(HasSubstr("rank 2")));
}

TEST(Stall, NothingFollowsFromTheEndOfATruncatedTrace) {
  auto trace = open_traces(2);
  for (std::int64_t number = 1; number <= 3; ++number)
    for (int rank = 0; rank < 2; ++rank)
      if (rank == 0 || number < 3) enter(trace, {rank, "0", number, 10 * number, 10 * number + 1});
  trace.ranks[1].truncated = true;
  for (int rank = 0; rank < 2; ++rank) end_at(trace, rank, "completed", 90);
  expect_nothing(trace);
}

TEST(Stall, CtrlCEndsAHealthyJob) {
  auto trace = open_traces(2);
  enter(trace, {0, "0", 1, 1'000, 0});
  end_at(trace, 0, "stopped", 1'002);  // both were told to end; the other took its time
  end_at(trace, 1, "stopped", 1'002);
  record(trace.ranks[1], 0, trace::Update{{0.1}});
  trace.ranks[1].events.back().time_ns = 1'001 * kMillisecond;
  expect_nothing(trace);
}

TEST(Stall, ARankThatEndedInOrderIsInsideOfNothing) {
  auto trace = open_traces(2);
  for (int rank = 0; rank < 2; ++rank) enter(trace, {rank, "0", 1, 10, rank == 0 ? 0 : 11});
  for (int rank = 0; rank < 2; ++rank) end_at(trace, rank, "completed", 9'000);
  expect_nothing(trace);
}

TEST(Stall, WhatAllRanksGotPastIsMended) {
  auto trace = open_traces(2);
  for (int rank = 0; rank < 2; ++rank) {
    enter(trace, {rank, "0", 1, 10, 700, true});
    enter(trace, {rank, "0", 2, 800, 801});
    end_at(trace, rank, "completed", 900);
  }
  expect_nothing(trace);
}

TEST(Stall, WhoIsCutOffAtOnceIsNoReasonToCallOthersLate) {
  auto trace = open_traces(3);
  enter(trace, {0, "0", 1, 1'000, 1'010, true});  // a reset by its peer
  enter(trace, {1, "0", 1, 1'000, 0});            // killed in it, and nobody saw
  enter(trace, {2, "0", 1, 1'011, 1'012, true});
  expect_only(trace, "no-progress", {1}, 0);
  EXPECT_THAT(place(trace), HasSubstr("rank 1 entered allreduce number 1, and is not heard of"));
  end_at(trace, 1, "signalled", 1'005, SIGKILL);
  for (const int rank : {0, 2}) end_at(trace, rank, "raised", 1'020, 0, true);
  expect_only(trace, "peer-dies", {1}, 0);
}

TEST(Stall, ARankThatRaisesInsideOfAnAsynchronousCollectiveDoesNotWait) {
  auto trace = open_traces(3);
  enter(trace, {0, "0", 1, 1'000, 1'010, true});
  enter(trace, {1, "0", 1, 1'000, 0});
  enter(trace, {2, "0", 1, 1'011, 1'012, true});
  end_at(trace, 1, "raised", 1'005);
  for (const int rank : {0, 2}) end_at(trace, rank, "raised", 1'020, 0, true);
  expect_only(trace, "one-rank-raises", {1}, 0);
}

TEST(Stall, VictimsThatReportNoCollectiveErrorAreNotTheOnesThatRaise) {
  auto trace = open_traces(3);
  for (const int rank : {0, 2}) enter(trace, {rank, "0", 1, 1'000, 1'010, true});
  end_at(trace, 1, "signalled", 1'005, SIGKILL);
  for (const int rank : {0, 2}) end_at(trace, rank, "raised", 1'020);
  expect_only(trace, "peer-dies", {1}, 0);
}

TEST(Stall, AWatchdogsAbortMakesVictimsNotCulprits) {
  auto trace = open_traces(3);
  for (const int rank : {0, 2}) {
    enter(trace, {rank, "0", 1, 1'000, 3'000, true});
    end_at(trace, rank, "signalled", 3'010, SIGABRT);
  }
  end_at(trace, 1, "stopped", 3'500);
  expect_only(trace, "no-progress", {1}, 0);
}

TEST(Stall, RanksInsideOfOtherOperationsAreSaidToBe) {
  auto pipeline = open_traces(2);
  enter(pipeline, {0, "0", 1, 1'000, 0, false, "recv", 9, 1});
  enter(pipeline, {1, "0", 1, 1'000, 0});
  for (int rank = 0; rank < 2; ++rank) end_at(pipeline, rank, "stopped", 4'000);
  EXPECT_THAT(place(pipeline), HasSubstr("rank 0 has not arrived at allreduce number 1; it is "
                                         "inside of recv number 1 with rank 1"));
  auto circle = open_traces(2);
  enter(circle, {0, "a", 1, 1'000, 0});
  enter(circle, {1, "b", 1, 1'001, 0});
  for (int rank = 0; rank < 2; ++rank) {
    for (const auto* group : {"a", "b"})
      record(circle.ranks[rank], 0, trace::Group{"joined", group, {0, 1}});
    end_at(circle, rank, "stopped", 4'000);
  }
  EXPECT_THAT(place(circle), HasSubstr("rank 1 has not arrived at allreduce number 1; it is inside "
                                       "of allreduce number 1 of group b"));
}

TEST(Stall, JobsThatOnlySendAndReceiveStallToo) {
  auto trace = open_traces(2);
  for (int rank = 0; rank < 2; ++rank) {
    enter(trace, {rank, "0", 1, 1'000, 0, false, "recv", 9, 1 - rank});
    end_at(trace, rank, "stopped", 4'000);
  }
  const auto findings = diagnose::diagnose(trace).findings;
  ASSERT_EQ(findings.size(), 1U) << told(trace);
  EXPECT_EQ(findings[0].pitfall, "no-progress");
  EXPECT_EQ(findings[0].ranks, all_ranks(2));
  EXPECT_THAT(findings[0].evidence, HasSubstr("rank 0 waits in recv number 1 with rank 1"));
}

TEST(Stall, AdviceToRestartHidesNoMismatch) {
  auto trace = open_traces(2);
  for (int rank = 0; rank < 2; ++rank) {
    record(trace.ranks[rank], 0, trace::Attempt{0, 0});
    record(trace.ranks[rank], 0, trace::TrainingState{.moment = "saved"});
    enter(trace, {rank, "0", 1, 1'000, 1'010, true, "allreduce", rank == 0 ? 4 : 9});
  }
  end_at(trace, 0, "raised", 1'020, 0, true);
  end_at(trace, 1, "signalled", 1'015, SIGABRT);
  EXPECT_THAT(told(trace), HasSubstr("shape-mismatch"));
}

// Of a job of two attempts only the last one's end counts.
class LastAttempt : public testing::Test {
 protected:
  // Each rank joins, decides so often to go on, and completes one collective for each.
  static trace::Trace attempt(const std::vector<int>& decisions) {
    auto trace = open_traces(2);
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto* action : {"join", "joined"})
        record(trace.ranks[rank], 0, trace::Group{action, "0", {0, 1}});
      for (int n = 1; n <= decisions.at(static_cast<std::size_t>(rank)); ++n)
        record(trace.ranks[rank], 0, trace::Decision{"stop", n == 4});
      for (int n = 1; n <= 2; ++n) enter(trace, {rank, "0", n, 10 * n, 10 * n + 1});
      end_at(trace, rank, "completed", 100);
    }
    return trace;
  }
};

TEST_F(LastAttempt, DecisionsOfAKilledAttemptDoNotCount) {
  expect_nothing(trace::concatenate({attempt({3, 2}), attempt({4, 4})}));
}

// What a rank does while it starts, or once it is told to end, says nothing of the job.
TEST_F(LastAttempt, ThatStillStartsOrIsToldToEndDoesNotStall) {
  auto starts = running(2);
  record(starts.ranks[0], 0, trace::Group{"join", "0", {0, 1}});
  expect_nothing(starts);
  end_at(starts, 0, "stopped", 20'000);
  expect_nothing(starts);
  auto goes_on = running(2);  // rank 1 is at something else
  enter(goes_on, {0, "0", 1, 1'000, 1'010});
  enter(goes_on, {1, "0", 1, 1'000, 1'010});
  enter(goes_on, {0, "0", 2, 1'020, 0});
  record(goes_on.ranks[1], 0, trace::SetEpoch{1});
  goes_on.ranks[1].events.back().time_ns = 9'000 * kMillisecond;
  expect_nothing(goes_on);
  // The same, and no process is left: nobody says how they ended.
  auto gone = goes_on;
  for (auto& rank : gone.ranks) rank.runs = false;
  expect_only(gone, "no-progress", {1}, -2);
  gone.ranks[1].events.back().time_ns = 1'100 * kMillisecond;
  expect_nothing(gone);
  // Ctrl-C at 1'400 ms: rank 1 ends at once, and rank 0 is cut off.
  auto told = goes_on;
  told.ranks[1].events.pop_back();
  told.ranks[0].events.pop_back();
  enter(told, {0, "0", 2, 1'020, 1'450, true});
  for (const int rank : {0, 1}) end_at(told, rank, "stopped", 1'400);
  expect_nothing(told);
  // The same after it has waited for long.
  told.ends.clear();
  told.ranks[0].events.pop_back();
  enter(told, {0, "0", 2, 1'020, 9'050, true});
  for (const int rank : {0, 1}) end_at(told, rank, "stopped", 9'000);
  expect_only(told, "no-progress", {1}, -2);
  // But not where another one, once all had begun, took as long and came.
  auto slow = told;
  for (auto& rank : slow.ranks)
    for (auto& event : rank.events)
      if (auto* call = event.as<trace::Collective>(); call != nullptr && call->sequence == 1)
        event.time_ns -= 8'000 * kMillisecond;
  expect_only(slow, "no-progress", {1}, -2);
  enter(slow, {0, "0", 0, -9'500, -9'490});
  enter(slow, {1, "0", 0, -9'500, -9'490});
  expect_nothing(slow);
}

// It was there, and prepared something for longer than others are waited for.
TEST_F(LastAttempt, ThatWasToldToEndWhileARankPreparedAccusesNobody) {
  auto starts = running(2);
  record(starts.ranks[0], 0, trace::Group{"join", "0", {0, 1}});
  record(starts.ranks[1], 0, trace::Update{});
  for (const int rank : {0, 1}) end_at(starts, rank, "stopped", 70'000);
  const auto found = diagnose::diagnose(starts).findings;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().pitfall, "rank-skips-init");
  EXPECT_EQ(found.front().severity, diagnose::Severity::advice);
}

TEST_F(LastAttempt, SkippedInitsOfALaterAttemptDo) {
  auto second = open_traces(2);
  record(second.ranks[0], 0, trace::Group{"join", "0", {0, 1}});
  end_at(second, 0, "raised", 5'000, 0, true);
  expect_only(trace::concatenate({attempt({1, 1}), second}), "rank-skips-init", {1}, -2);
}

TEST_F(LastAttempt, IsThatOfARankThatLeftNothingInIt) {
  auto first = open_traces(2);
  enter(first, {1, "0", 1, 1'000, 2'000, true});
  end_at(first, 0, "signalled", 1'100, SIGKILL);
  auto second = open_traces(2);
  enter(second, {0, "0", 1, 1'000, 2'000, true});
  second.ranks.erase(second.ranks.begin() + 1);
  end_at(second, 0, "raised", 2'100, 0, true);
  end_at(second, 1, "exited", 900);
  const auto whole = trace::concatenate({first, second});
  const auto found = diagnose::stall_of(whole);
  ASSERT_TRUE(found);
  EXPECT_THAT(diagnose::to_text(*found), HasSubstr("rank 1 exited with code 3 before"));
}

TEST_F(LastAttempt, OnAMachineWithAnotherClockIsAsItWas) {
  const auto late_clock = [] {
    auto trace = open_traces(2);
    for (int rank = 0; rank < 2; ++rank) enter(trace, {rank, "0", 1, 90'000, 90'001});
    return trace;
  }();
  auto second = open_traces(2);
  for (int rank = 0; rank < 2; ++rank) {
    enter(second, {rank, "0", 1, 1'000 + rank, 3'000 + rank, true});
    end_at(second, rank, "raised", 3'100, 0, true);
  }
  expect_only(trace::concatenate({late_clock, second}), "no-progress", all_ranks(2), -2);
}

}  // namespace
}  // namespace lockstep::simulated
