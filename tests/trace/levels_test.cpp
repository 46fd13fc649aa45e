// What less of a program would have recorded.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/trace/levels.h>

#include <map>

#include "events.h"

namespace lockstep::trace {
namespace {

using test::kKinds;

Payload of_kind(std::size_t kind) {
  return test::payload_of_kind(kind, std::make_index_sequence<kKinds>{});
}

// Every kind of event once in an attempt before the last, and once in it.
Trace whole() {
  Trace trace;
  trace.world_size = 2;
  for (int rank = 0; rank < 2; ++rank) {
    ParticipantTrace of_rank;
    of_rank.participant = {rank, 2, "process"};
    of_rank.last_attempt = kKinds;
    for (std::size_t i = 0; i < 2 * kKinds; ++i)
      of_rank.events.push_back({static_cast<std::int64_t>(i), 3, of_kind(i % kKinds)});
    trace.ranks.push_back(of_rank);
  }
  trace.ends = {{.rank = 1, .how = "raised"}};
  return trace;
}

TEST(Levels, AreTheBackendThenAllButSamplesAndMetricsThenAll) {
  std::map<int, std::string> names;
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    names[level_of(name_of(kind))] += std::string(" ") + name_of(kind);
  EXPECT_EQ(names[0], " collective rank_end");
  EXPECT_EQ(names[2],
            " dataset set_epoch pass_begin pass_end samples metric random_numbers decision shard "
            "data_file");
  EXPECT_EQ(names.size(), 3u);
}

TEST(Levels, KeepWhatIsOfThemAndBelowInItsOrder) {
  for (int level = 0; level < kLevels; ++level) {
    const auto trace = at_level(whole(), level);
    ASSERT_EQ(trace.ranks.size(), 2u);
    EXPECT_EQ(trace.world_size, 2);
    ASSERT_EQ(trace.ends.size(), 1u);
    EXPECT_EQ(trace.ends[0].how, "raised");
    for (const auto& rank : trace.ranks) {
      std::vector<std::int64_t> kept, expected;
      std::size_t latest = 0;
      for (const auto& event : rank.events) kept.push_back(event.time_ns);
      for (std::size_t i = 0; i < 2 * kKinds; ++i) {
        if (level_of(name_of(i % kKinds)) > level) continue;
        expected.push_back(static_cast<std::int64_t>(i));
        latest += i < kKinds ? 1 : 0;
      }
      EXPECT_EQ(kept, expected) << level;
      EXPECT_EQ(rank.last_attempt, latest) << level;
    }
  }
  EXPECT_EQ(at_level(whole(), 2).ranks[0].events.size(), 2 * kKinds);
}

TEST(Levels, ThatThereAreNotAreRefused) {
  for (const int level : {-1, 3}) EXPECT_THROW(at_level(whole(), level), UsageError) << level;
}

}  // namespace
}  // namespace lockstep::trace
