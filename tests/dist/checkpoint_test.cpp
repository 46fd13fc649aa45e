// Rank 0 saves and all ranks know how it went.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>

#include <atomic>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SaveOnRankZero, AllReadWhatRankZeroSaved) {
  const TemporaryFolder folder("lockstep-checkpoint");
  const auto path = folder.path() / "x.pt";
  for (const int world_size : {1, 2, 4}) {
    std::atomic<int> saves = 0;
    test::run_thread_ranks(world_size, [&](const ProcessGroupPtr& group) {
      for (int round = 0; round < 10; ++round) {
        save_on_rank_zero(*group, [&] {
          ++saves;
          save_checkpoint(path, Value::Dict{{"round", round}, {"rank", group->getRank()}},
                          {.sync = false});
        });
        const auto loaded = load_checkpoint(path);
        EXPECT_EQ(loaded.at("round").as_int(), round);
        EXPECT_EQ(loaded.at("rank").as_int(), 0);
        barrier(*group);  // all have read before rank 0 saves again
      }
    });
    EXPECT_EQ(saves, 10);
  }
}

TEST(SaveOnRankZero, AllThrowWhereRankZeroCannotSave) {
  const auto thrown = test::try_thread_ranks({.world_size = 3}, [&](const ProcessGroupPtr& group) {
    std::string text;
    try {
      save_on_rank_zero(*group, [] { save_checkpoint("/proc/no/x.pt", 1); });
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, AllOf(HasSubstr("cannot save /proc/no/x.pt"), HasSubstr("folder")));
    EXPECT_EQ(text.starts_with("rank 0 could not save"), group->getRank() != 0);
    // A long reason is cut, and the group goes on.
    EXPECT_THROW(save_on_rank_zero(*group, [] { throw Error(std::string(5000, 'x')); }), Error);
    save_on_rank_zero(*group, [] {});
  });
  for (const auto& error : thrown) EXPECT_EQ(error, nullptr);
}

TEST(SaveOnRankZero, AllThrowWhateverRankZeroThrows) {
  const auto thrown = test::try_thread_ranks({.world_size = 2}, [&](const ProcessGroupPtr& group) {
    const auto save = [&] { save_on_rank_zero(*group, [] { throw 7; }); };
    if (group->getRank() == 0) {
      EXPECT_THROW(save(), int);
    } else {
      std::string text;
      try {
        save();
      } catch (const Error& error) {
        text = error.what();
      }
      EXPECT_THAT(text, AllOf(HasSubstr("rank 0 could not save"), HasSubstr("no std::exception")));
    }
    save_on_rank_zero(*group, [] {});
  });
  for (const auto& error : thrown) EXPECT_EQ(error, nullptr);
}

// The save's own reason is not lost where the group fails, too.
TEST(SaveOnRankZero, TheSavesReasonComesBeforeTheGroups) {
  std::atomic<int> failed_broadcasts = 0;
  const auto thrown = test::try_thread_ranks({.world_size = 2}, [&](const ProcessGroupPtr& group) {
    if (group->getRank() != 0) return;
    std::string text;
    try {
      save_on_rank_zero(*group, [&] {
        group->abort();
        throw Error("no space left");
      });
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_EQ(text, "no space left");
    try {
      save_on_rank_zero(*group, [] {});
    } catch (const CollectiveError&) {
      ++failed_broadcasts;
    }
  });
  EXPECT_EQ(failed_broadcasts, 1) << "else the test shows nothing";
}

}  // namespace
}  // namespace lockstep
