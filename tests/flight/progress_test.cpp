// Calls that all ranks made and that did not end, coalesced calls, and point-to-point operations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dumps_in_memory.h"

namespace lockstep::flight {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Ranks two() {
  return Ranks(2, {{"0", "[0, 1]"}}, "nccl");
}
Ranks in_states(const std::string& first, const std::string& second, bool retired = false) {
  auto job = two();
  job.all({.state = "completed"}, 2);
  job[0].call({.state = first, .retired = retired});
  job[1].call({.state = second, .retired = retired});
  return job;
}

TEST(FlightProgress, ACallThatDidNotStartOnARank) {
  const auto finding = in_states("started", "scheduled").finding();
  EXPECT_EQ(finding.pitfall, "no-progress");
  EXPECT_THAT(finding.ranks, ElementsAre(1));
  EXPECT_EQ(finding.sequence, 3);
  EXPECT_THAT(finding.evidence, HasSubstr("on rank 1 it has not started"));
}

TEST(FlightProgress, ACallThatIsThroughOnSomeRanksOnly) {
  const auto finding = in_states("started", "completed").finding();
  EXPECT_EQ(finding.pitfall, "no-progress");
  EXPECT_THAT(finding.ranks, ElementsAre(0));
  EXPECT_THAT(finding.evidence, HasSubstr("rank 1 is through and rank 0 is not"));
}

TEST(FlightProgress, TimeRanOutForAll) {
  const auto finding = in_states("started", "started", true).finding();
  EXPECT_THAT(finding.ranks, ElementsAre(0, 1));
  EXPECT_THAT(finding.evidence, HasSubstr("time ran out: no rank is at fault"));
}

TEST(FlightProgress, UnderWayIsNoFinding) {
  EXPECT_THAT(in_states("started", "started").diagnosis().findings, IsEmpty());
  EXPECT_THAT(in_states("completed", "completed").diagnosis().findings, IsEmpty());
}

TEST(FlightProgress, GloosEntriesStayScheduledAndAreRetired) {
  Ranks job(2);
  job[0].call({.retired = true}, 3);
  job[1].call({.retired = false}, 3);
  EXPECT_THAT(job.diagnosis().findings, IsEmpty());
}

TEST(FlightProgress, PartsOfACoalescedCallAreComparedTogether) {
  const auto called = [](const std::vector<Call>& by_rank_2) {
    Ranks job(3, {{"0", "[0, 1, 2]"}}, "nccl");
    const std::vector<Call> parts = {
        {.operation = "_broadcast_oop"},
        {.operation = "_broadcast_oop", .same_sequence = true},
        {.operation = "coalesced", .input = {}, .same_sequence = true}};
    for (int rank = 0; rank < 3; ++rank)
      for (const auto& part : rank == 2 ? by_rank_2 : parts) job[rank].call(part);
    job.all({});
    return job;
  };
  const Call part{.operation = "_broadcast_oop"};
  const Call later{.operation = "_broadcast_oop", .same_sequence = true};
  const Call larger{
      .operation = "_broadcast_oop", .input = {{5}}, .output = {{5}}, .same_sequence = true};
  EXPECT_THAT(called({part, later}).diagnosis().findings, IsEmpty());
  EXPECT_THAT(called({part, larger}).finding().ranks, ElementsAre(2));
  EXPECT_EQ(called({part, larger}).finding().pitfall, "shape-mismatch");
  EXPECT_EQ(called({part}).finding().pitfall, "collective-mismatch");
}

Call send(const Sizes& sizes = {{4}}) {
  return {.operation = "send 0->1", .input = sizes, .output = {}, .state = "started"};
}
Call receive(const Sizes& sizes = {{4}}) {
  return {.operation = "recv 1<-0", .input = {}, .output = sizes, .state = "started"};
}

TEST(FlightP2p, InOrderOnEachPairWhateverLiesBetween) {
  auto job = two();
  job[0].call(send({{4}})).call({}).call(send({{9}}));
  job[1].call({}).call(receive({{4}})).call(receive({{9}}));
  EXPECT_THAT(job.diagnosis().findings, IsEmpty());
}

TEST(FlightP2p, ASendThatNobodyReceives) {
  auto job = two();
  job.all({});
  job[0].call(send());
  const auto finding = job.finding();
  EXPECT_EQ(finding.pitfall, "no-progress");
  EXPECT_THAT(finding.ranks, ElementsAre(1));
  EXPECT_THAT(finding.evidence, HasSubstr("rank 1 did not receive it"));
}

TEST(FlightP2p, AReceiveThatNobodySends) {
  auto job = two();
  job.all({});
  job[1].call(receive());
  EXPECT_THAT(job.finding().ranks, ElementsAre(0));
}

TEST(FlightP2p, SizesOfTheSecondDiffer) {
  auto job = two();
  job[0].call(send()).call(send({{9}}));
  job[1].call(receive()).call(receive({{8}}));
  const auto finding = job.finding();
  EXPECT_THAT(finding.ranks, ElementsAre(0, 1));
  EXPECT_EQ(finding.pitfall, "shape-mismatch");
  EXPECT_EQ(finding.sequence, 2);
}

TEST(FlightP2p, WhatMeetsWhatIsUnknownOnceSomeIsOverwritten) {
  auto job = two();
  job[0].call(send(), 9).cut_to(4);
  job[1].call(receive(), 3);
  EXPECT_THAT(job.diagnosis().findings, IsEmpty());
}

TEST(FlightText, NamesNoPitfallThatTheDumpsRuleOut) {
  EXPECT_THAT(text_of(in_states("started", "started", true).diagnosis()),
              Not(HasSubstr("or rank-")));
}

TEST(FlightText, OfManyRanksItGivesRanges) {
  Ranks job(64, {{"0", "[0, 1, 2, 3]"}}, "nccl");
  for (int rank = 0; rank < 64; rank += rank == 6 ? 3 : 1) job[rank].call({.state = "completed"});
  for (int rank = 0; rank < 64; rank += rank == 6 ? 3 : 1)
    job[rank].call({.state = "started", .retired = true});
  EXPECT_THAT(text_of(job.diagnosis()), HasSubstr("    ranks 0-6 and 9-63, sequence 2\n"));
}

TEST(FlightText, IsFitForATerminal) {
  Ranks job(40);
  job.all({});
  for (int rank = 0; rank < 40; rank += rank == 6 ? 3 : 1)
    job[rank].call({.operation = "\x1b[31mred", .dtype = std::string(500, 'x')});
  const auto text = text_of(job.diagnosis());
  EXPECT_THAT(text, HasSubstr("violation: no-progress\n    ranks 7 and 8, sequence 2\n"));
  EXPECT_THAT(text, HasSubstr("in group 0 (default_pg): ranks 0-6 and 9-39 called \\x1b[31mred"));
  EXPECT_THAT(text, Not(HasSubstr(std::string(300, 'x'))));
}

}  // namespace
}  // namespace lockstep::flight
