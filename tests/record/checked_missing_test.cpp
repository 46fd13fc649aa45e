// CheckedBackend: ranks that do not come are named in time.
#include <lockstep/base/clock.h>

#include <atomic>
#include <future>
#include <optional>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "checked_job.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr milliseconds kTimeout{1000};
constexpr milliseconds kPromise{kTimeout + milliseconds(2000)};

milliseconds since(std::int64_t begin) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(monotonic_ns() - begin));
}

// Opens when `count` ranks have passed: a rank that is absent stays alive until the others have been
// told.
class TimedLatch {
 public:
  explicit TimedLatch(int count) : count_(count) {}
  void pass() {
    if (--count_ == 0) open_.set_value();
  }
  void wait() { ASSERT_EQ(opened_.wait_for(std::chrono::seconds(20)), std::future_status::ready); }

 private:
  std::atomic<int> count_;
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

TEST(CheckedMissing, OneRankIsNamedWithWhereItWasLast) {
  CheckedJob job(3, kTimeout);
  TimedLatch told(2);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto tensor = torch::ones({3});
    broadcast(*group, tensor, 0);
    if (group->getRank() == 2) return told.wait();
    const auto begin = monotonic_ns();
    const auto error = thrown_by<record::RanksMissing>([&] { all_reduce(*group, tensor); });
    told.pass();
    ASSERT_TRUE(error);
    EXPECT_LT(since(begin), kPromise);
    EXPECT_THAT(error->ranks, ElementsAre(2));
    EXPECT_EQ(error->operation, "allreduce");
    EXPECT_EQ(error->sequence, 3);
    EXPECT_EQ(error->timeout, kTimeout);
    EXPECT_THAT(error->what(), HasSubstr("rank 2 has not arrived; last at sequence 2 (broadcast)"));
    EXPECT_TRUE(tensor.equal(torch::ones({3})));
    const auto after = thrown_by<CollectiveError>([&] { barrier(*group); });
    EXPECT_THAT(after->what(), HasSubstr("cannot be used any more, since at allreduce number 3"));
  });
}

TEST(CheckedMissing, SeveralRanksAreAllNamedThroughAFileStoreToo) {
  CheckedJob job(4, kTimeout);
  const TemporaryFolder folder("lockstep-checked");
  job.options.decorate = [&](BackendPtr backend, const StorePtr&) {
    return record::check(std::move(backend), c10::make_intrusive<c10d::FileStore>(
                                                 (folder.path() / "store").string(), 4));
  };
  TimedLatch told(2);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    if (group->getRank() % 2 == 0) return told.wait();
    const auto begin = monotonic_ns();
    const auto error = thrown_by<record::RanksMissing>([&] { barrier(*group); });
    told.pass();
    ASSERT_TRUE(error);
    EXPECT_LT(since(begin), kPromise);
    EXPECT_THAT(error->ranks, ElementsAre(0, 2));
    EXPECT_THAT(error->what(), HasSubstr("ranks 0 and 2 have not arrived"));
  });
}

// The one that waits elsewhere is told where the other is, and the other way round.
TEST(CheckedMissing, ATagThatNobodySendsIsNamedWithBothSides) {
  CheckedJob job(2, kTimeout);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto& backend = *group->getDefaultBackend();
    const bool sends = group->getRank() == 0;
    const auto begin = monotonic_ns();
    const auto tensor = torch::ones({3});
    const auto work = sends ? send_to(backend, tensor, 1, 5) : receive_from(backend, tensor, 0, 6);
    const auto error = thrown_by<record::RanksMissing>([&] { work->wait(); });
    ASSERT_TRUE(error);
    EXPECT_LT(since(begin), kPromise);
    EXPECT_THAT(error->ranks, ElementsAre(sends ? 1 : 0));
    EXPECT_THAT(error->what(), HasSubstr("waits in send to rank 1, tag 5"));
    EXPECT_THAT(error->what(), HasSubstr("waits in recv from rank 0, tag 6"));
  });
}

TEST(CheckedMissing, ARankInARecvIsMissedByTheCollective) {
  CheckedJob job(2, kTimeout);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto& backend = *group->getDefaultBackend();
    const auto tensor = torch::ones({3});
    const bool receives = group->getRank() == 0;
    const auto error = thrown_by<record::RanksMissing>([&] {
      receives ? receive_from(backend, tensor, 1, 6)->wait()
               : all_reduce_of(backend, tensor)->wait();
    });
    ASSERT_TRUE(error);
    if (receives)
      EXPECT_THAT(error->what(),
                  HasSubstr("rank 1 was last seen to wait at sequence 2 (allreduce)"));
    else
      EXPECT_THAT(error->what(), HasSubstr("rank 0 waits in recv from rank 1, tag 6"));
  });
}

TEST(CheckedMissing, WhoComesTooLateIsToldSo) {
  CheckedJob job(2, kTimeout);
  TimedLatch told(1);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    if (group->getRank() == 0) {
      const auto error = thrown_by<record::RanksMissing>([&] { barrier(*group); });
      EXPECT_THAT(error->ranks, ElementsAre(1));
      return told.pass();
    }
    told.wait();
    const auto error = thrown_by<CollectiveError>([&] { barrier(*group); });
    EXPECT_THAT(error->what(), HasSubstr("this rank came too late"));
  });
}

// A straggler is no fault: nobody is told anything, and the next ones are as before.
TEST(CheckedMissing, ALateRankInTimeIsNoFault) {
  CheckedJob job(3);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    auto tensor = torch::ones({3});
    if (group->getRank() == 1) {
      // The others have said in the store that they wait: the slow path.
      const auto is_posted = [&](int rank) {
        return job.store->check({"lockstep_check/status/" + std::to_string(rank)});
      };
      for (const auto begin = monotonic_ns(); !(is_posted(0) && is_posted(2));) {
        ASSERT_LT(since(begin), std::chrono::seconds(10));
        std::this_thread::sleep_for(milliseconds(5));
      }
    }
    for (int i = 0; i < 5; ++i) all_reduce(*group, tensor);
    EXPECT_EQ(tensor[0].item<int>(), 243);
  });
}

TEST(CheckedMissing, AnOperationsOwnTimeoutGoesFirst) {
  CheckedJob job(2);  // 20 s
  TimedLatch told(1);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    if (group->getRank() == 1) return told.wait();
    c10d::BarrierOptions options;
    options.timeout = kTimeout;
    const auto begin = monotonic_ns();
    const auto error = thrown_by<record::RanksMissing>(
        [&] { group->getDefaultBackend()->barrier(options)->wait(); });
    told.pass();
    EXPECT_LT(since(begin), kPromise);
    EXPECT_EQ(error->timeout, kTimeout);
  });
}

TEST(CheckedMissing, ARankThatDoesNotCallCheckIsNamed) {
  CheckedJob job(2);
  TimedLatch told(1);
  job.options.decorate = [&](BackendPtr backend, const StorePtr&) {
    if (backend->getRank() == 1) {
      told.wait();
      return backend;
    }
    const auto error = thrown_by<UnavailableError>(
        [&] { record::check(backend, job.store, {.timeout = kTimeout}); });
    told.pass();
    EXPECT_THAT(error->what(), HasSubstr("after 1000 ms rank 1 had not called it"));
    return backend;
  };
  run_thread_ranks(job.options, [](ProcessGroupPtr) {});
}

}  // namespace
}  // namespace lockstep::test
