// Who is named from dumps, and what is left open where the dumps do not tell. The real ones of torch
// are in dump_test.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dumps_in_memory.h"

namespace lockstep::flight {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Call kReduce;
const Call kBroadcast{.operation = "broadcast", .input = {{3}}, .output = {{3}}};
const Call kGather{.operation = "all_gather", .input = {{2}}, .output = {{4, 2}}};
const std::map<std::string, std::string> kFour = {{"0", "[0, 1, 2, 3]"}};

auto is(const std::string& pitfall, std::vector<int> ranks, std::int64_t sequence) {
  return AllOf(Field(&Finding::pitfall, pitfall), Field(&Finding::ranks, std::move(ranks)),
               Field(&Finding::sequence, sequence));
}

TEST(FlightDiagnosis, HealthyOnBothBackends) {
  for (const auto* backend : {"gloo", "nccl"}) {
    Ranks job(4, kFour, backend);
    job.all(kGather).all(kReduce, 3).all(kBroadcast);
    const auto diagnosis = job.diagnosis();
    EXPECT_THAT(diagnosis.findings, IsEmpty()) << text_of(diagnosis);
    EXPECT_THAT(diagnosis.notes, IsEmpty());
    EXPECT_EQ(diagnosis.entries, 20);
  }
}

TEST(FlightDiagnosis, AMissingRankWithWhatItDidLast) {
  Ranks job(4);
  job.all(kGather).all(kReduce, 3);
  for (const int rank : {0, 2, 3}) job[rank].call(kBroadcast);
  const auto finding = job.finding();
  EXPECT_THAT(finding, is("no-progress", {1}, 5));
  EXPECT_EQ(finding.evidence,
            "in group 0 (default_pg): ranks 0, 2 and 3 called broadcast [[3]] Float (step at "
            "train.py:14); rank 1 did not: "
            "its last is sequence 4, all_reduce [[4]] Float (step at train.py:13).");
}

// What one rank has completed, all have called: a dump that does not have it was made earlier.
TEST(FlightDiagnosis, AnOlderDumpOfAHealthyJobMissesNothing) {
  auto done = kReduce;
  done.state = "completed";
  Ranks job(2, {{"0", "[0, 1]"}}, "nccl");
  job[0].call(done, 5);
  job[1].call(done, 3);
  EXPECT_THAT(job.diagnosis().findings, IsEmpty()) << text_of(job.diagnosis());
  job[0].call(kReduce);  // and one that it waits in
  const auto finding = job.finding();
  EXPECT_THAT(finding, is("no-progress", {1}, 6));
  EXPECT_THAT(finding.evidence, HasSubstr("its last is sequence 3"));
}

TEST(FlightDiagnosis, SeveralMissingAndOneThatNeverCalled) {
  Ranks job(4, kFour, "nccl");
  for (const int rank : {0, 2}) job[rank].call(kReduce, 2);
  EXPECT_THAT(job.finding(), is("no-progress", {1, 3}, 1));
  EXPECT_THAT(text_of(job.diagnosis()),
              HasSubstr("or rank-skips-init, if a rank never joined the group (not looked for"));
  job[1].call(kReduce);
  job[3].call(kReduce);
  EXPECT_THAT(job.finding(), is("no-progress", {1, 3}, 2));
}

TEST(FlightDiagnosis, TheFurthestBehindIsNamedAndTheNextToldOf) {
  Ranks job(4);
  job.all(kReduce, 5);
  for (const int rank : {0, 2, 3}) job[rank].call(kReduce);
  for (const int rank : {0, 3}) job[rank].call(kReduce);
  const auto finding = job.finding();
  EXPECT_THAT(finding, is("no-progress", {1}, 6));
  EXPECT_THAT(finding.evidence,
              HasSubstr("Later rank 2 falls behind, too: the furthest is at sequence 7"));
}

TEST(FlightDiagnosis, AnotherOperation) {
  for (const int odd : {0, 2}) {
    Ranks job(4, kFour, "nccl");
    job.all(kReduce);
    for (int rank = 0; rank < 4; ++rank) job[rank].call(rank == odd ? kBroadcast : kReduce);
    const auto finding = job.finding();
    EXPECT_THAT(finding, is("collective-mismatch", {odd}, 2));
    EXPECT_THAT(finding.evidence, HasSubstr("rank " + std::to_string(odd) + " called broadcast"));
  }
}

TEST(FlightDiagnosis, OfTwoThatDifferBothAreNamed) {
  Ranks job(2);
  job[0].call(kReduce);
  job[1].call(kBroadcast);
  EXPECT_THAT(job.finding(), is("collective-mismatch", {0, 1}, 1));
}

TEST(FlightDiagnosis, HowTheOddRankWentAstray) {
  const auto told = [](const std::vector<Call>& by_rank_2,
                       const std::vector<Call>& by_others = {kReduce, kBroadcast, kGather}) {
    Ranks job(4);
    for (int rank = 0; rank < 4; ++rank)
      for (const auto& call : rank == 2 ? by_rank_2 : by_others) job[rank].call(call);
    return job.finding();
  };
  const auto swapped = told({kBroadcast, kReduce, kGather});
  EXPECT_THAT(swapped, is("order-mismatch", {2}, 1));
  EXPECT_THAT(swapped.evidence, HasSubstr("in the other order"));
  // Who waits in one of the two has not come to the next.
  EXPECT_THAT(told({kBroadcast, kReduce}), is("order-mismatch", {2}, 1));
  EXPECT_THAT(told({kBroadcast, kReduce, kGather}, {kReduce, kBroadcast}),
              is("order-mismatch", {2}, 1));
  const auto left_out = told({kBroadcast, kGather});
  EXPECT_THAT(left_out, is("rank-conditional-collective", {2}, 1));
  EXPECT_THAT(left_out.evidence, HasSubstr("as if it had left this one out"));
  const auto one_more = told({kGather, kReduce, kBroadcast});
  EXPECT_THAT(one_more, is("rank-conditional-collective", {2}, 1));
  EXPECT_THAT(one_more.evidence, HasSubstr("as if it had made one too many"));
  // They go on alike: it is one other call, and no more than that.
  const auto another = told({kBroadcast, kReduce, kReduce}, {kReduce, kReduce, kReduce});
  EXPECT_THAT(another, is("collective-mismatch", {2}, 1));
  EXPECT_THAT(another.evidence, Not(HasSubstr("as if")));
}

TEST(FlightDiagnosis, SizesAndDtype) {
  const auto with = [](const Call& odd) {
    Ranks job(4, kFour, "nccl");
    job.all(kReduce);
    for (int rank = 0; rank < 4; ++rank) job[rank].call(rank == 3 ? odd : kReduce);
    return job.finding();
  };
  EXPECT_THAT(with({.input = {{8}}, .output = {{8}}}), is("shape-mismatch", {3}, 2));
  EXPECT_THAT(with({.dtype = "Int"}), is("dtype-mismatch", {3}, 2));
}

TEST(FlightDiagnosis, WhatMayDifferBetweenRanks) {
  Ranks job(2, {{"0", "[0, 1]"}}, "nccl");
  job[0].call({.operation = "scatter", .input = {{2, 5}}, .output = {{5}}});
  job[1].call({.operation = "scatter", .input = {}, .output = {{5}}});
  job[0].call({.operation = "gather", .input = {{5}}, .output = {{2, 5}}});
  job[1].call({.operation = "gather", .input = {{5}}, .output = {}});
  job[0].call({.operation = "all_to_all", .input = {{5}}, .output = {{3}}});
  job[1].call({.operation = "all_to_all", .input = {{1}}, .output = {{3}}});
  EXPECT_THAT(job.diagnosis().findings, IsEmpty());
}

TEST(FlightDiagnosis, SizesThatDoNotAddUp) {
  Ranks split(2, {{"0", "[0, 1]"}}, "nccl");
  split.all({.operation = "all_to_all", .input = {{5}}, .output = {{3}}});
  EXPECT_THAT(split.finding(), is("shape-mismatch", {0, 1}, 1));
  EXPECT_THAT(split.finding().evidence,
              HasSubstr("all called all_to_all (step at train.py:10); together the ranks give 10 "
                        "elements and take 6"));
  Ranks gather(4, kFour, "nccl");
  gather.all({.operation = "all_gather", .input = {{2}}, .output = {{3, 2}}});
  EXPECT_THAT(gather.finding(), is("shape-mismatch", {0, 1, 2, 3}, 1));
}

TEST(FlightDiagnosis, TheOddRankOfAGatherIsNamed) {
  for (const auto* operation : {"all_gather", "reduce_scatter"}) {
    Ranks job(4, kFour, "nccl");
    for (int rank = 0; rank < 4; ++rank)
      job[rank].call({.operation = operation, .input = {{rank == 2 ? 3 : 8}}, .output = {{8}}});
    EXPECT_THAT(job.finding(), is("shape-mismatch", {2}, 1));
  }
}

TEST(FlightDiagnosis, EachGroupHasItsFirstParting) {
  Ranks job(6, {{"1", "[0, 1, 2]"}, {"2", "[3, 4, 5]"}}, "nccl");
  for (int rank = 0; rank < 6; ++rank) {
    const std::string group = rank < 3 ? "1" : "2";
    job[rank].call({.group = group});
    job[rank].call(
        {.input = {{rank % 3 == 1 ? 8 : 4}}, .output = {{rank % 3 == 1 ? 8 : 4}}, .group = group});
    job[rank].call({.group = group});
  }
  job[2].call({.group = "1"});
  job[0].call({.group = "1"});  // 1 is missing there since it went astray
  const auto found = job.diagnosis().findings;
  EXPECT_THAT(found, ElementsAre(is("shape-mismatch", {1}, 2), is("shape-mismatch", {4}, 2)));
}

TEST(FlightDiagnosis, OnlyTheFirstPartingCounts) {
  Ranks job(4);
  for (int rank = 0; rank < 4; ++rank) job[rank].call(rank == 1 ? kBroadcast : kReduce);
  for (const int rank : {0, 2, 3}) job[rank].call(kReduce);  // 1 is missing since it went astray
  EXPECT_THAT(job.finding(), is("collective-mismatch", {1}, 1));
}

TEST(FlightDiagnosis, AnOverwrittenCallIsUnknownAndNotMissing) {
  Ranks job(4, {{"0", "[0, 1, 2, 3]"}, {"1", "[0, 1]"}}, "nccl");
  for (int i = 0; i < 10; ++i) {
    for (const int rank : {0, 1}) job[rank].call({.group = "1"}, 3);
    job.all(kReduce);
  }
  for (int rank = 0; rank < 4; ++rank) job[rank].cut_to(5);  // 2 of the group, and 5 of it
  const auto healthy = job.diagnosis();
  EXPECT_THAT(healthy.findings, IsEmpty()) << text_of(healthy);
  EXPECT_THAT(healthy.notes, ElementsAre(HasSubstr("On ranks 0, 1, 2 and 3 the buffer was full")));
  for (const int rank : {0, 1, 3}) job[rank].call(kReduce).cut_to(5);
  EXPECT_THAT(job.finding(), is("no-progress", {2}, 11));
}

TEST(FlightDiagnosis, TheOthersMayHaveOverwrittenWhatTheyWaitedIn) {
  Ranks job(4, kFour, "nccl");
  job.all(kReduce, 5);
  for (const int rank : {0, 2, 3}) job[rank].call(kReduce, 100).cut_to(50);
  const auto finding = job.finding();
  EXPECT_THAT(finding, is("no-progress", {1}, 6));
  EXPECT_THAT(finding.evidence,
              HasSubstr("gone on to sequence 105, and what 6 was is overwritten"));
}

TEST(FlightDiagnosis, AGroupWhoseCallsAreAllOverwritten) {
  Ranks job(2, {{"0", "[0, 1]"}, {"1", "[0, 1]"}}, "nccl");
  job.all({.group = "1"}).all(kReduce, 9);
  job[0].cut_to(5);
  job[1].call({.group = "1"});
  for (int i = 0; i < 2; ++i) job[i].call(kReduce);
  const auto diagnosis = job.diagnosis();
  EXPECT_THAT(diagnosis.findings, IsEmpty()) << text_of(diagnosis);
  EXPECT_THAT(diagnosis.notes,
              ElementsAre(HasSubstr("On rank 0 the buffer was full"),
                          HasSubstr("Of group 1 (part), all calls of rank 0 are overwritten")));
}

TEST(FlightDiagnosis, DumpsOfUnfinishedCallsOnly) {
  Ranks job(3, {{"0", "[0, 1, 2]"}}, "nccl");
  job.all({.state = "completed"}, 7);
  for (const int rank : {0, 2}) job[rank].call({.state = "started"});
  for (int rank = 0; rank < 3; ++rank) job[rank].unfinished_only();
  const auto finding = job.finding();
  EXPECT_THAT(finding, is("no-progress", {1}, 8));
  EXPECT_THAT(finding.evidence, HasSubstr("its dump holds no unfinished call of this group"));
}

TEST(FlightDiagnosis, ARankWithoutADump) {
  Ranks job(4, kFour, "nccl");
  job.all({.state = "completed"}, 3).all({.operation = "broadcast", .state = "started"});
  const auto without = job.diagnosis({2});
  EXPECT_THAT(without.findings, IsEmpty());
  EXPECT_THAT(without.missing_ranks, ElementsAre(2));
  EXPECT_THAT(without.notes,
              ElementsAre(AllOf(HasSubstr("rank 2 left no dump"),
                                HasSubstr("ranks 0, 1 and 3 agree up to sequence 4, broadcast"),
                                HasSubstr("they may wait for the ranks without a dump"))));

  job[1].call(kReduce);  // goes on where 0 and 3 do not
  EXPECT_THAT(job.finding({2}), is("no-progress", {0, 3}, 5));
}

TEST(FlightDiagnosis, GloosDumpsDoNotSayHowManyRanksThereAre) {
  Ranks job(4);
  job.all(kReduce);
  EXPECT_THAT(job.diagnosis({1}).missing_ranks, ElementsAre(1));  // a gap in the files' numbers
  const auto last = job.diagnosis({3});
  EXPECT_THAT(last.findings, IsEmpty());
  EXPECT_THAT(last.notes, ElementsAre(HasSubstr("3 are taken from the files' names")));
  job.all(kGather);  // its shapes tell
  EXPECT_THAT(job.diagnosis({3}).missing_ranks, ElementsAre(3));
}

TEST(FlightDiagnosis, WhatFollowsFromAnotherGroup) {
  Ranks job(3, {{"1", "[0, 1]"}, {"2", "[1, 2]"}}, "nccl");
  job[0].call({.group = "1"});  // waits for 1, which waits for 2, which does not come
  job[1].call({.group = "2"});
  const auto diagnosis = job.diagnosis();
  EXPECT_THAT(diagnosis.findings, ElementsAre(is("no-progress", {2}, 1), is("no-progress", {1}, 1)))
      << text_of(diagnosis);
  EXPECT_THAT(diagnosis.findings[0].evidence, Not(HasSubstr("follows")));
  EXPECT_THAT(diagnosis.findings[1].evidence,
              HasSubstr("waits in group 2 (part): this follows from it"));
}

TEST(FlightDiagnosis, TheRankThatAllWaitForIsNamedFirst) {
  Ranks job(4, {{"0", "[0, 1, 2, 3]"}, {"1", "[2, 3]"}}, "nccl");
  job.all(kReduce);
  for (const int rank : {0, 1}) job[rank].call(kReduce);
  job[2].call({.group = "1"});
  const auto diagnosis = job.diagnosis();
  ASSERT_THAT(diagnosis.findings,
              ElementsAre(is("no-progress", {3}, 1), is("no-progress", {2, 3}, 2)))
      << text_of(diagnosis);
  EXPECT_THAT(diagnosis.findings[1].evidence,
              HasSubstr("Meanwhile rank 2 waits in group 1 (part), which is told of apart"));
}

TEST(FlightDiagnosis, GroupsInDifferentOrders) {
  Ranks job(2, {{"0", "[0, 1]"}, {"1", "[0, 1]"}}, "nccl");
  job[0].call({.group = "1"});
  job[1].call(kReduce);
  const auto diagnosis = job.diagnosis();
  ASSERT_EQ(diagnosis.findings.size(), 2) << text_of(diagnosis);
  for (const auto& finding : diagnosis.findings) {
    EXPECT_THAT(finding.evidence, Not(HasSubstr("follows")));
    EXPECT_THAT(finding.evidence, HasSubstr("called in different orders"));
  }
}

TEST(FlightDiagnosis, ACircleDoesNotFollowFromAnUnrelatedFault) {
  Ranks job(4, {{"1", "[0, 1]"}, {"2", "[0, 1]"}, {"3", "[2, 3]"}}, "nccl");
  job[0].call({.group = "1"});
  job[1].call({.group = "2"});
  job[2].call({.group = "3"});
  job[3].call({.operation = "broadcast", .group = "3"});
  const auto diagnosis = job.diagnosis();
  ASSERT_EQ(diagnosis.findings.size(), 3) << text_of(diagnosis);
  for (const auto& finding : diagnosis.findings)
    EXPECT_THAT(finding.evidence, Not(HasSubstr("follows")));
}

TEST(FlightDiagnosis, GroupsOfOneNameAreToldApartByTheirRanks) {
  Ranks job(4, {}, "nccl");
  Dumps dumps;
  for (int rank = 0; rank < 4; ++rank) {
    job[rank].call({.group = "7"}, rank < 2 ? 3 : 5);
    const auto text = job[rank].dump({{"7", rank < 2 ? "[0, 1]" : "[2, 3]"}}).dump();
    dumps.ranks.push_back(parse_dump(text, *dumps.names));
    dumps.ranks.back().rank = rank;
  }
  const auto diagnosis = diagnose(std::move(dumps));
  EXPECT_THAT(diagnosis.findings, IsEmpty()) << text_of(diagnosis);
  EXPECT_EQ(diagnosis.groups, 2);
}

}  // namespace
}  // namespace lockstep::flight
