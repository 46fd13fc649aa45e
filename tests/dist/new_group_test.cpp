// Groups of some of a job's ranks, and what is said of ranks that do not come to make one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>

#include <csignal>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of_error(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const CollectiveError& failed) {
    return failed.what();
  } catch (const std::exception& other) {
    return std::string("another error: ") + other.what();
  }
  return "nothing was thrown";
}

TEST(NewGroup, ReducesOverItsRanksOnly) {
  test::run_thread_ranks(4, [](const ProcessGroupPtr& world) {
    const int rank = world->getRank();
    auto odd = new_group(world, {3, 1});
    auto sum = torch::full({3}, rank + 1.0);
    if (rank % 2 == 0) {
      EXPECT_FALSE(odd);
    } else {
      ASSERT_TRUE(odd);
      EXPECT_EQ(odd->getSize(), 2);
      EXPECT_EQ(odd->getRank(), rank == 3 ? 0 : 1) << "in the order given";
      EXPECT_EQ(odd->getGroupName(), "1");
      all_reduce(*odd, sum);
      EXPECT_TRUE(sum.equal(torch::full({3}, 6.0)));
    }
    // The world goes on beside it, and so does a second group of the same ranks.
    auto again = new_group(world, {1, 3});
    if (again) {
      EXPECT_EQ(again->getGroupName(), "2");
      auto word = torch::full({1}, rank + 1.0);
      broadcast(*again, word, 1);
      EXPECT_EQ(word.item<double>(), 4);
    }
    auto all = torch::ones({1});
    all_reduce(*world, all);
    EXPECT_EQ(all.item<double>(), 4);
  });
}

TEST(NewGroup, OfOneRankWaitsForNobody) {
  test::run_thread_ranks(2, [](const ProcessGroupPtr& world) {
    auto alone = new_group(world, {0});
    if (world->getRank() == 0) barrier(*alone);
  });
}

TEST(NewGroup, IsDecoratedAsAsked) {
  std::atomic<int> decorated{0};
  test::run_thread_ranks(2, [&](const ProcessGroupPtr& world) {
    InitOptions options;
    options.decorate = [&](BackendPtr backend, const StorePtr&) {
      ++decorated;
      return backend;
    };
    auto group = new_group(world, {0, 1}, options);
    barrier(*group);  // nobody leaves before all are connected
  });
  EXPECT_EQ(decorated, 2);
}

// Where a launcher has not numbered them, who records a group knows its rank by this.
TEST(NewGroup, IsPreparedWithTheParentsNumbers) {
  static std::array<std::atomic<int>, 2> seen{};
  test::run_thread_ranks(2, [](const ProcessGroupPtr& world) {
    barrier(*world);
    prepare_groups([](InitOptions& options) {
      if (options.world_size == 2) ++seen.at(static_cast<std::size_t>(options.rank));
    });
    auto group = new_group(world, {1, 0});
    barrier(*group);
    prepare_groups(nullptr);
  });
  EXPECT_EQ(seen[0], 1);
  EXPECT_EQ(seen[1], 1);
}

TEST(NewGroup, NamesTheRanksThatDoNotCallIt) {
  const auto thrown = test::try_thread_ranks({.world_size = 3}, [](const ProcessGroupPtr& world) {
    if (world->getRank() == 1) new_group(world, {1}, {.timeout = 500ms});
  });
  EXPECT_THAT(text_of_error(thrown[1]),
              AllOf(HasSubstr("new_group 1 failed (timeout 500 ms)"),
                    HasSubstr("not there: rank 0, rank 2."), HasSubstr("members or not")));
}

TEST(NewGroup, RefusesRanksThatThereAreNot) {
  test::run_thread_ranks(2, [](const ProcessGroupPtr& world) {
    EXPECT_THROW(new_group(world, {0, 2}), UsageError);
    EXPECT_THROW(new_group(world, {-1}), UsageError);
    EXPECT_THROW(new_group(world, {1, 1}), UsageError);
    EXPECT_THROW(new_group(world, {}), UsageError);
  });
}

TEST(Rendezvous, NamesTheRanksThatDoNotCome) {
  const TemporaryFolder folder("lockstep-ranks");
  std::vector<std::exception_ptr> thrown(3);
  const auto join = [&](int rank) {
    try {
      init_process_group({.init_method = "file://" + (folder.path() / "store").string(),
                          .rank = rank,
                          .world_size = 4,
                          .timeout = 2000ms});
    } catch (...) {
      thrown[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  };
  std::thread second(join, 2);
  join(0);
  second.join();
  for (const int rank : {0, 2})
    EXPECT_THAT(text_of_error(thrown[static_cast<std::size_t>(rank)]),
                AllOf(HasSubstr("init_process_group failed (timeout 2000 ms)"),
                      HasSubstr("not there: rank 1, rank 3."), Not(HasSubstr("rank 2,"))));
}

// Gloo writes to sockets of peers that may have gone.
TEST(Rendezvous, IgnoresSigpipeUnlessItIsHandled) {
  const auto handler_after = [](sighandler_t before) {
    const auto own = std::signal(SIGPIPE, before);
    init_process_group();
    return std::signal(SIGPIPE, own);
  };
  EXPECT_EQ(handler_after(SIG_DFL), SIG_IGN);
  const sighandler_t mine = [](int) {};
  EXPECT_EQ(handler_after(mine), mine);
}

}  // namespace
}  // namespace lockstep
