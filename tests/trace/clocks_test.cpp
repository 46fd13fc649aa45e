// Traces of machines whose clocks differ.
#include <gtest/gtest.h>
#include <lockstep/trace/clocks.h>

namespace lockstep::trace {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Ranks 0 and 1 on one machine, 2 and 3 on another, whose events' clock is behind by 1000 s, and whose wall clock is
// ahead by `skew_ns`. Each stays 10 ms in an all-reduce; the other machine comes 5 ms later.
std::vector<ParticipantTrace> two_machines(std::int64_t skew_ns, const char* op = "allreduce") {
  std::vector<ParticipantTrace> ranks;
  for (int r = 0; r < 4; ++r) {
    const bool other = r >= 2;
    ParticipantTrace rank;
    rank.participant = {r, 4, "process"};
    const std::int64_t behind = other ? 1000 * kSecond : 0;
    rank.started_ns = 5000 * kSecond - behind;
    rank.started_unix_ns = 90'000 * kSecond + (other ? skew_ns : 0);
    const auto at = rank.started_ns + kSecond + (other ? 5'000'000 : 0);
    rank.events = {{at, 0, Collective{.sequence = 1, .group = "0", .op = op}}};
    rank.events[0].left_ns = at + 10'000'000;
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

std::int64_t entered(const ParticipantTrace& rank) {
  return rank.events[0].time_ns;
}

TEST(TraceClocks, OfMachinesAreJoinedByTheirWallClocks) {
  auto ranks = two_machines(0);
  to_one_clock(ranks);
  EXPECT_EQ(entered(ranks[2]) - entered(ranks[0]), 5'000'000);
  EXPECT_EQ(entered(ranks[3]), entered(ranks[2]));
  EXPECT_EQ(entered(ranks[1]), entered(ranks[0]));
}

TEST(TraceClocks, ThatContradictACollectiveAreMovedUntilTheyDoNot) {
  for (const auto skew : {-3600 * kSecond, -7 * kSecond, 7 * kSecond, 3600 * kSecond}) {
    auto ranks = two_machines(skew);
    to_one_clock(ranks);
    EXPECT_LE(entered(ranks[2]), ranks[0].events[0].left_ns) << skew;
    EXPECT_GE(ranks[2].events[0].left_ns, entered(ranks[0])) << skew;
    EXPECT_EQ(entered(ranks[3]), entered(ranks[2])) << skew;
  }
}

TEST(TraceClocks, AreLeftAsTheyAreWhereNothingTells) {
  auto ranks = two_machines(7 * kSecond, "broadcast");
  to_one_clock(ranks);
  EXPECT_EQ(entered(ranks[2]) - entered(ranks[0]), 7 * kSecond + 5'000'000);
}

}  // namespace
}  // namespace lockstep::trace
