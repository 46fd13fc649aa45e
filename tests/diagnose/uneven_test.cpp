#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

constexpr std::int64_t kElements = 9;

// Ranks that draw batches, each with an all-reduce, in so many passes. Their collectives meet in the order
// in which they enter them, whatever they are; where some rank has gone, the others stay inside.
struct UnevenJob {
  int world_size = 2;
  std::vector<std::vector<int>> batches;  // by rank, by pass
  bool joins = false;       // ranks that are done take part until all are, pass by pass
  int dies_on = -1;         // rank that is killed
  std::size_t dies_at = 0;  // batches that it has drawn
  bool leaves_by_barrier = true;
  bool raises = false;  // what ends the first rank's last batch is no collective

  trace::Trace run() const {
    auto trace = empty_trace(world_size);
    std::vector<std::vector<trace::Collective>> calls(batches.size());
    std::vector<std::size_t> most(batches[0].size());
    for (const auto& rank : batches)
      for (std::size_t pass = 0; pass < rank.size(); ++pass)
        most[pass] = std::max<std::size_t>(most[pass], rank[pass]);
    // First the number of collectives that every rank can enter, alone; the least of them is where all stop.
    std::size_t reached = static_cast<std::size_t>(-1);
    for (int r = 0; r < world_size; ++r) reached = std::min(reached, play(r, most, nullptr, 0));
    for (int r = 0; r < world_size; ++r) play(r, most, &trace.ranks[r], reached);
    return trace;
  }

 private:
  // Collectives that rank r enters before it leaves; recorded where `to` is given, which it leaves where one
  // is not answered.
  std::size_t play(int r, const std::vector<std::size_t>& most, trace::ParticipantTrace* to,
                   std::size_t reached) const {
    std::size_t entered = 0, drawn = 0;
    std::int64_t step = 0;
    const auto tell = [&](trace::SharedPayload payload, bool answered = true) {
      if (to) record(*to, step, std::move(payload), answered ? 1 : 0);
    };
    const auto call = [&](const char* op, std::vector<std::int64_t> sizes) {
      ++entered;
      const bool answered = !to || entered <= reached;
      tell(trace::Collective{.sequence = static_cast<std::int64_t>(entered),
                             .group = "world",
                             .op = op,
                             .dtype = "float",
                             .sizes = std::move(sizes)},
           answered);
      return answered;
    };
    tell(trace::Engine{"distributed_data_parallel", 2});
    for (std::size_t pass = 0; pass < most.size(); ++pass) {
      tell(trace::PassBegin{"train", static_cast<std::int64_t>(pass)});
      for (int b = 0; b < batches[r][pass]; ++b, ++step) {
        tell(trace::Samples{"train", {static_cast<std::int64_t>(100 * r + step)}});
        ++drawn;
        if (r == dies_on && drawn == dies_at) return entered;
        if (raises && r == 0 && drawn == most[0]) return entered;
        if (!call("allreduce", {kElements})) return entered;
        tell(trace::Update{{0.1}});
      }
      tell(trace::PassEnd{"train", static_cast<std::int64_t>(pass), batches[r][pass]});
      for (auto b = static_cast<std::size_t>(batches[r][pass]); joins && b < most[pass];
           ++b, ++step)
        if (!call("allreduce", {kElements})) return entered;
    }
    if (leaves_by_barrier) call("barrier", {});
    // In the first round, what it would answer: a barrier answers no all-reduce.
    return to ? entered : entered - (leaves_by_barrier ? 1 : 0);
  }
};

class Uneven : public testing::TestWithParam<int> {
 protected:
  // The first rank has one batch more in each pass.
  UnevenJob job(std::size_t passes) const {
    UnevenJob made{.world_size = GetParam()};
    for (int r = 0; r < GetParam(); ++r)
      made.batches.push_back(std::vector<int>(passes, r == 0 ? 4 : 3));
    return made;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Uneven, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Uneven, BatchesAreNamedWhereTheRankThatHasMoreWaits) {
  expect_only(job(1).run(), "uneven-batches", odd_one_out(GetParam(), 0), 3);
}

TEST_P(Uneven, BatchesAccountForLoadersThatAreSetUpOtherwise) {
  auto trace = job(1).run();
  for (auto& rank : trace.ranks)
    record(
        rank, 0,
        trace::Settings{
            trace::SettingsOf::loader, {"batch_size"}, {rank.participant.rank == 0 ? "3" : "4"}});
  EXPECT_EQ(state(trace, "configuration-differs"), State::found);
  expect_only(trace, "uneven-batches", odd_one_out(GetParam(), 0), 3);
}

// The others' next pass answers the batch that was too many; all stop at the end of the last one.
TEST_P(Uneven, BatchesOfSeveralPassesAreNamedWhereTheyBeginToDiffer) {
  expect_only(job(3).run(), "uneven-batches", odd_one_out(GetParam(), 0), 3);
  auto later = job(3);
  for (auto& of_rank : later.batches) of_rank[0] = 3;
  const auto trace = later.run();
  expect_only(trace, "uneven-batches", odd_one_out(GetParam(), 0), 6);
  EXPECT_THAT(diagnose::diagnose(trace).findings[0].evidence,
              testing::StartsWith("in pass 2 ranks have from 3 to 4 batches; rank 0 is at batch "));
}

// It counts something over the ranks before its forward, with which a batch is recorded.
TEST_P(Uneven, BatchesAreNamedWhereTheRankThatHasMoreWaitsBeforeItsForward) {
  auto trace = job(3).run();
  auto& events = trace.ranks[0].events;
  const auto last = std::find_if(events.rbegin(), events.rend(), [](const auto& event) {
    return event.template is<trace::Samples>();
  });
  events.erase(std::prev(last.base()));
  expect_only(trace, "uneven-batches", odd_one_out(GetParam(), 0), 3);
}

TEST_P(Uneven, BatchesAreNamedWhereTheOthersLeftWithoutAWord) {
  auto wrong = job(1);
  wrong.leaves_by_barrier = false;
  expect_only(wrong.run(), "uneven-batches", odd_one_out(GetParam(), 0), 3);
}

TEST_P(Uneven, BatchesAreNamedWhereOneRankHasFewer) {
  auto wrong = job(1);
  for (auto& of_rank : wrong.batches) of_rank = {5};
  wrong.batches.back() = {2};
  expect_only(wrong.run(), "uneven-batches", odd_one_out(GetParam(), GetParam() - 1), 2);
}

TEST_P(Uneven, BatchesThatAreJoinedAreRight) {
  auto right = job(2);
  right.joins = true;
  expect_nothing(right.run());
  EXPECT_EQ(state(right.run(), "uneven-batches"), State::clean);
}

TEST_P(Uneven, BatchesOfRanksThatNeverMeetAreRight) {
  auto alone = job(2).run();
  alone = without<trace::Collective>(alone);
  EXPECT_EQ(state(alone, "uneven-batches"), State::clean);
}

TEST_P(Uneven, BatchesAreNotToBlameForAnExceptionOfTheRankThatHasMore) {
  auto unlucky = job(1);
  unlucky.joins = true;
  unlucky.raises = true;
  EXPECT_EQ(state(unlucky.run(), "uneven-batches"), State::clean);
}

// It ended between two passes, of which the others have begun the second.
TEST_P(Uneven, BatchesAreNotToBlameForARankThatEndsBeforeItsNextPass) {
  const int w = GetParam();
  UnevenJob even{.world_size = w};
  even.batches.assign(static_cast<std::size_t>(w), {3});
  auto trace = even.run();
  for (int r = 0; r < w; ++r) {
    auto& rank = trace.ranks[static_cast<std::size_t>(r)];
    rank.closed = r != 1;
    std::erase_if(rank.events, [](const trace::Event& event) {
      const auto* call = event.as<trace::Collective>();
      return call != nullptr && call->op == "barrier";
    });
    if (r == 1) continue;
    record(rank, 3, trace::PassBegin{"train", 1});
    record(rank, 3, trace::Samples{"train", {100 * r + 3}});
    record(rank, 3,
           trace::Collective{.sequence = 4,
                             .group = "world",
                             .op = "allreduce",
                             .dtype = "float",
                             .sizes = {kElements}},
           0);
  }
  const auto expect_neither = [&] {
    EXPECT_EQ(state(trace, "uneven-batches"), State::clean);
    EXPECT_EQ(state(trace, "local-early-stop"), State::clean);
  };
  expect_neither();
  // It raised, as Python does: its trace has an end, and it let go of no group.
  trace.ranks[1].closed = true;
  for (auto& rank : trace.ranks) record(rank, -1, trace::Group{"joined", "world", {0, 1}});
  expect_neither();
  // It let go: it has stopped, and the others have not.
  record(trace.ranks[1], 3, trace::Group{"leave", "world", {0, 1}});
  EXPECT_EQ(state(trace, "uneven-batches"), State::clean);
  expect_only(trace, "local-early-stop", {1}, 3);
}

TEST_P(Uneven, EqualBatchesAreRight) {
  auto right = job(2);
  for (auto& of_rank : right.batches) of_rank = {3, 3};
  expect_nothing(right.run());
  EXPECT_EQ(state(right.run(), "uneven-batches"), State::clean);
}

TEST_P(Uneven, BatchesNeedPassesOfEveryRank) {
  const auto whole = job(1).run();
  EXPECT_EQ(state(without<trace::PassBegin>(whole), "uneven-batches"), State::not_triggered);
  auto lost = whole;
  lost.ranks.pop_back();
  EXPECT_EQ(state(lost, "uneven-batches"), State::not_triggered);
}

TEST_P(Uneven, BatchesOfARunCutAnywhereAreNotGuessedAt) {
  auto right = job(2);
  right.joins = true;
  const auto whole = right.run();
  for (std::size_t length = 0; length < whole.ranks[0].events.size(); ++length) {
    auto cut = whole;
    for (auto& rank : cut.ranks) rank.events.resize(std::min(rank.events.size(), length));
    EXPECT_NE(state(cut, "uneven-batches"), State::found) << length;
  }
}

// Joined, and then a rank is killed: those that wait do not wait for those that are done.
TEST(UnevenJoined, IsNotToBlameForADeath) {
  for (const int ranks : {3, 4, 8}) {
    UnevenJob unlucky{.world_size = ranks, .joins = true, .dies_on = 1, .dies_at = 4};
    for (int r = 0; r < ranks; ++r) unlucky.batches.push_back({r < 2 ? 4 : 3});
    EXPECT_EQ(state(unlucky.run(), "uneven-batches"), State::clean) << ranks;
  }
}

TEST(UnevenOnOneRank, CannotBe) {
  UnevenJob one{.world_size = 1, .batches = {{3}}};
  EXPECT_EQ(state(one.run(), "uneven-batches"), State::not_applicable);
}

}  // namespace
}  // namespace lockstep::simulated
