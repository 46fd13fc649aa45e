// Lesson 17's: streams, communicators, shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

#include "expect.h"
#include "hang_job.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using ::testing::HasSubstr;
using trace::SharedMemory;
using trace::StreamUse;

class Streams : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  // All ranks' streams are given this to do; two steps of it.
  trace::Trace job(const std::vector<StreamUse>& uses) const {
    auto trace = empty_trace(world_size());
    for (auto& rank : trace.ranks)
      for (std::int64_t step = 0; step < 2; ++step)
        for (const auto& use : uses) record(rank, step, use);
    return trace;
  }
  std::vector<int> everyone() const { return all_ranks(world_size()); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Streams, kOneToThree, testing::PrintToStringParamName());

constexpr std::int64_t kCompute = 7, kComm = 9;
constexpr std::uint64_t kBucket = 100, kSum = 101, kReady = 55, kReduced = 56;

StreamUse write(std::int64_t stream, std::uint64_t buffer) {
  return {"write", stream, buffer, 0};
}
StreamUse read(std::int64_t stream, std::uint64_t buffer) {
  return {"read", stream, buffer, 0};
}
StreamUse record_event(std::int64_t stream, std::uint64_t event) {
  return {"record", stream, 0, event};
}
StreamUse wait_for(std::int64_t stream, std::uint64_t event) {
  return {"wait", stream, 0, event};
}
StreamUse synchronize(std::int64_t stream, std::uint64_t event = 0) {
  return {"synchronize", stream, 0, event};
}

// A bucket is written on one stream, reduced on another into a sum, and the sum is read on the first.
std::vector<StreamUse> reduction(const std::vector<StreamUse>& before,
                                 const std::vector<StreamUse>& behind) {
  std::vector<StreamUse> uses{write(kCompute, kBucket)};
  uses.insert(uses.end(), before.begin(), before.end());
  uses.push_back(read(kComm, kBucket));
  uses.push_back(write(kComm, kSum));
  uses.insert(uses.end(), behind.begin(), behind.end());
  uses.push_back(read(kCompute, kSum));
  return uses;
}
const std::vector<StreamUse> kBefore{record_event(kCompute, kReady), wait_for(kComm, kReady)};
const std::vector<StreamUse> kBehind{record_event(kComm, kReduced), wait_for(kCompute, kReduced)};

TEST_P(Streams, InOrderByEventsAreRight) {
  const auto trace = job(reduction(kBefore, kBehind));
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "wrong-stream"), State::clean);
  EXPECT_EQ(state(empty_trace(world_size()), "wrong-stream"), State::not_triggered);
}

TEST_P(Streams, ThatReadWithoutAnEventAreNamed) {
  const auto trace = job(reduction({}, kBehind));
  expect_only(trace, "wrong-stream", everyone(), 0);
  EXPECT_THAT(diagnose::diagnose(trace).findings[0].evidence,
              HasSubstr("stream 9 reads a buffer that stream 7 writes"));
  expect_only(job(reduction(kBefore, {})), "wrong-stream", everyone(), 0);
}

TEST_P(Streams, ThatWaitForAnEventOfBeforeTheWriteAreNamed) {
  expect_only(job({record_event(kCompute, kReady), write(kCompute, kBucket),
                   wait_for(kComm, kReady), read(kComm, kBucket)}),
              "wrong-stream", everyone(), 0);
  // An event that is never recorded holds up nothing.
  expect_only(job({write(kCompute, kBucket), wait_for(kComm, 77), read(kComm, kBucket)}),
              "wrong-stream", everyone(), 0);
}

TEST_P(Streams, ThatWriteWhatAnotherStillReadsAreNamed) {
  const auto trace = job(reduction(kBefore, {synchronize(-1, 0)}));
  expect_nothing(trace);
  // The first step is right; the second fills the bucket again while the first's is sent.
  expect_only(job({write(kCompute, kBucket), record_event(kCompute, kReady),
                   wait_for(kComm, kReady), read(kComm, kBucket)}),
              "wrong-stream", everyone(), 1);
}

TEST_P(Streams, AreInOrderWhereTheProgramWaitsBetween) {
  for (const auto& wait : {synchronize(kCompute), synchronize(-1)})
    expect_nothing(job(reduction({wait}, {synchronize(kComm)})));
  expect_nothing(
      job(reduction({record_event(kCompute, kReady), synchronize(-1, kReady)}, kBehind)));
  // Of another stream that is no help.
  expect_only(job(reduction({synchronize(kComm)}, kBehind)), "wrong-stream", everyone(), 0);
}

TEST_P(Streams, MayWaitThroughAThird) {
  expect_nothing(job({write(kCompute, kBucket), record_event(kCompute, kReady), wait_for(3, kReady),
                      record_event(3, kReduced), wait_for(kComm, kReduced), read(kComm, kBucket),
                      synchronize(-1)}));
}

TEST_P(Streams, ThatReadTheSameOrAreTheSameNeedNoOrder) {
  expect_nothing(
      job({write(kComm, kBucket), read(kComm, kBucket), write(kComm, kSum), read(kComm, kSum)}));
  expect_nothing(
      job({synchronize(-1), write(kCompute, kBucket), synchronize(kCompute), read(kComm, kBucket),
           read(kCompute, kBucket), read(3, kBucket), synchronize(-1)}));
}

// Number 0, the legacy default stream, waits for what the others were given before, and they for it.
TEST_P(Streams, AreInOrderWithTheLegacyDefaultStream) {
  constexpr std::int64_t kDefault = 0;
  expect_nothing(job({write(kCompute, kBucket), read(kDefault, kBucket), write(kDefault, kSum),
                      read(kCompute, kSum), read(kComm, kSum)}));
  // Its work between two others' puts those in order; what is not behind it stays unordered.
  expect_nothing(job({write(kCompute, kBucket), write(kDefault, kSum), read(kComm, kBucket),
                      write(kDefault, kSum)}));
  const auto trace = job({write(kDefault, kSum), write(kCompute, kBucket), read(kComm, kBucket)});
  expect_only(trace, "wrong-stream", everyone(), 0);
}

TEST_P(Streams, OfOneRankAloneAreNamedByIt) {
  auto trace = job(reduction(kBefore, kBehind));
  auto& last = trace.ranks.back();
  record(last, 5, write(kCompute, kBucket));
  record(last, 5, read(kComm, kBucket));
  expect_only(trace, "wrong-stream", {world_size() - 1}, 5);
}

// ---- communicators ----

class Communicators : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Communicators, kTwoAndThree, testing::PrintToStringParamName());

trace::Collective in_group(const std::string& group, std::int64_t sequence, bool failed = false) {
  return {failed ? 1 : 0, sequence, group, "allreduce", "sum", -1, "float", {4}};
}
void enter(trace::ParticipantTrace& rank, std::int64_t at_ns, std::int64_t left_ns,
           const trace::Collective& call) {
  record(rank, 0, call, left_ns);
  rank.events.back().time_ns = at_ns;
}

// Both groups once in one order; then the first rank begins with A, and the others with B. Given up after two
// seconds, or waited in for ever.
trace::Trace in_two_orders(int world_size, bool gives_up) {
  auto trace = empty_trace(world_size);
  for (auto& rank : trace.ranks) {
    enter(rank, 10, 20, in_group("A", 1));
    enter(rank, 30, 40, in_group("B", 1));
    const bool is_first = rank.participant.rank == 0;
    const auto left = gives_up ? 2 * kSecond : 0;
    enter(rank, 50, left, in_group(is_first ? "A" : "B", 2, gives_up));
    end(trace, rank.participant.rank, gives_up ? "raised" : "deadline", 0, gives_up);
  }
  return trace;
}

TEST_P(Communicators, InTwoOrdersAreNamedWithBothGroups) {
  for (const bool gives_up : {false, true}) {
    const auto trace = in_two_orders(world_size(), gives_up);
    expect_only(trace, "communicator-order", odd_one_out(world_size(), 0), 0);
    const auto text = diagnose::diagnose(trace).findings[0].evidence;
    EXPECT_THAT(text, HasSubstr("rank 0 waits in allreduce number 2 of group A"));
    EXPECT_THAT(text, HasSubstr("in allreduce number 2 of group B"));
  }
}

// Given to one stream each, without waiting between: all have begun both.
TEST_P(Communicators, InTwoOrdersOnOneStreamAreNamedToo) {
  auto trace = in_two_orders(world_size(), false);
  for (auto& rank : trace.ranks)
    enter(rank, 60, 0, in_group(rank.participant.rank == 0 ? "B" : "A", 2));
  expect_only(trace, "communicator-order", odd_one_out(world_size(), 0), 0);
}

TEST_P(Communicators, InOneOrderAndWaitedForInAnotherAreRight) {
  auto trace = empty_trace(world_size());
  for (auto& rank : trace.ranks) {
    const bool is_first = rank.participant.rank == 0;
    enter(rank, 10, is_first ? 40 : 30, in_group("A", 1));
    enter(rank, 20, is_first ? 30 : 40, in_group("B", 1));
    end(trace, rank.participant.rank, "completed");
  }
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "communicator-order"), State::clean);
}

// The others wait for it in the group of all, and it waits for another that died, in a group of theirs.
TEST_P(Communicators, AreNotToBlameForADeath) {
  // One that waits elsewhere, one that died, and one that waits.
  auto trace = empty_trace(std::max(3, world_size()));
  for (auto& rank : trace.ranks) {
    const int number = rank.participant.rank;
    enter(rank, 10, 20, in_group("all", 1));
    if (number < 2) enter(rank, 30, 40, in_group("pair", 1));
    if (number == 0) enter(rank, 50, 0, in_group("pair", 2));
    if (number > 1) enter(rank, 50, 0, in_group("all", 2));
    end(trace, number, number == 1 ? "signalled" : "deadline", number == 1 ? SIGKILL : 0);
  }
  EXPECT_EQ(state(trace, "communicator-order"), State::clean);
  for (const auto& finding : diagnose::diagnose(trace).findings)
    EXPECT_EQ(finding.pitfall, "peer-dies");
}

// Both groups in one order, A before B. A rank got through A at once, where it is the root, and waits in B for one that
// still waits in A for the last rank.
trace::Trace behind_a_root(int world_size, const std::string& how, int signal) {
  auto trace = empty_trace(std::max(3, world_size));
  const int last = static_cast<int>(trace.ranks.size()) - 1;
  for (auto& rank : trace.ranks) {
    const int number = rank.participant.rank;
    enter(rank, 10, 20, in_group("A", 1));
    if (number < 2) enter(rank, 30, 40, in_group("B", 1));
    if (number == 1) enter(rank, 50, 60, in_group("A", 2));
    if (number == 1) enter(rank, 70, 0, in_group("B", 2));
    if (number != 1 && number != last) enter(rank, 50, 0, in_group("A", 2));
    end(trace, number, number == last ? how : "deadline", number == last ? signal : 0);
  }
  return trace;
}

TEST_P(Communicators, AreNotToBlameWhereOneIsAheadOfADeathOrAnAbsentRank) {
  const auto trace = behind_a_root(world_size(), "signalled", SIGKILL);
  EXPECT_EQ(state(trace, "communicator-order"), State::clean);
  EXPECT_EQ(state(trace, "peer-dies"), State::found);
  for (const auto& finding : diagnose::diagnose(trace).findings)
    EXPECT_EQ(finding.pitfall, "peer-dies");
  const auto absent = behind_a_root(world_size(), "deadline", 0);
  EXPECT_EQ(state(absent, "communicator-order"), State::clean);
  EXPECT_FALSE(diagnose::diagnose(absent).findings.empty());
}

TEST_P(Communicators, AreNotLookedForWhereThereIsOne) {
  HangJob one(world_size());
  one.all(call("allreduce", 4));
  EXPECT_EQ(state(one.play(), "communicator-order"), State::not_applicable);
}

// ---- shared memory ----

class Shared : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  // Every rank reserves so much where so much is free, and ends so.
  trace::Trace job(std::int64_t needed, std::int64_t free, const std::string& how, int signal = 0,
                   int error = 0) const {
    auto trace = empty_trace(world_size());
    for (auto& rank : trace.ranks) {
      record(rank, -1, SharedMemory{"reserve", 5, needed, free, 64 << 20, 0});
      if (error != 0) record(rank, -1, SharedMemory{"failed", 5, needed, free, 64 << 20, error});
      rank.closed = how == "completed";
      end(trace, rank.participant.rank, how, signal);
    }
    return trace;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Shared, kOneToThree, testing::PrintToStringParamName());

constexpr std::int64_t kMiB = 1 << 20;

TEST_P(Shared, MemoryThatIsRefusedIsNamed) {
  const auto trace = job(100 * kMiB, 64 * kMiB, "raised", 0, ENOSPC);
  expect_only(trace, "small-shared-memory", all_ranks(world_size()), -1);
  EXPECT_THAT(diagnose::diagnose(trace).findings[0].evidence,
              HasSubstr("needs 100 MiB of shared memory, where 64 MiB of 64 MiB are free"));
}

// Others took what was free a moment before.
TEST_P(Shared, MemoryThatOthersTookIsNamed) {
  expect_only(job(40 * kMiB, 64 * kMiB, "raised", 0, ENOSPC), "small-shared-memory",
              all_ranks(world_size()), -1);
}

TEST_P(Shared, MemoryThatWasOnlyPromisedIsNamedWhereItKills) {
  expect_only(job(100 * kMiB, 64 * kMiB, "signalled", SIGBUS), "small-shared-memory",
              all_ranks(world_size()), -1);
  if (world_size() == 1) return expect_nothing(job(40 * kMiB, 64 * kMiB, "completed"));
  // Each by itself has room, and together they do not.
  auto trace = job(40 * kMiB, 64 * kMiB, "stopped");
  trace.ends.back().how = "signalled";
  trace.ends.back().signal = SIGBUS;
  expect_only(trace, "small-shared-memory", {world_size() - 1}, -1);
}

TEST_P(Shared, MemoryWithRoomIsRight) {
  const auto trace = job(64 * kMiB / world_size(), 64 * kMiB, "completed");
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "small-shared-memory"), State::clean);
  EXPECT_EQ(state(empty_trace(world_size()), "small-shared-memory"), State::not_triggered);
}

// As a sparse file does: more than there is, of which little is used.
TEST_P(Shared, MemoryThatDidNoHarmIsLeftAlone) {
  expect_nothing(job(100 * kMiB, 64 * kMiB, "completed"));
}

// A program that was told that there is no room, and takes a file on disk.
TEST_P(Shared, MemoryThatTheRankDidWithoutIsLeftAlone) {
  expect_nothing(job(100 * kMiB, 64 * kMiB, "completed", 0, ENOSPC));
  // Where one did not do without it, that one is named.
  auto trace = job(100 * kMiB, 64 * kMiB, "completed", 0, ENOSPC);
  trace.ends.back().how = "raised";
  expect_only(trace, "small-shared-memory", {world_size() - 1}, -1);
}

TEST_P(Shared, MemoryIsNotToBlameForAnotherDeath) {
  for (const int signal : {SIGKILL, SIGSEGV})
    EXPECT_EQ(state(job(100 * kMiB, 64 * kMiB, "signalled", signal), "small-shared-memory"),
              State::clean);
  EXPECT_EQ(state(job(100 * kMiB, 64 * kMiB, "raised"), "small-shared-memory"), State::clean);
  // Nor for another bus error, or another refusal.
  EXPECT_EQ(state(job(kMiB, 64 * kMiB, "signalled", SIGBUS), "small-shared-memory"), State::clean);
  EXPECT_EQ(state(job(kMiB, 64 * kMiB, "raised", 0, EACCES), "small-shared-memory"), State::clean);
}

}  // namespace
}  // namespace lockstep::simulated
