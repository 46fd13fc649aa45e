// The blocking collectives, on 2 to 4 ranks: what they compute, and how they fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>

#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(Collectives, AllReduceSumsAndTakesTheMaximum) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    at::Tensor sum = torch::full({3}, rank + 1, torch::kInt64);
    all_reduce(*group, sum);
    EXPECT_TRUE(sum.equal(torch::full({3}, ranks * (ranks + 1) / 2, torch::kInt64)));
    at::Tensor highest = torch::tensor({static_cast<float>(-rank), static_cast<float>(rank)});
    all_reduce(*group, highest, c10d::ReduceOp::MAX);
    EXPECT_TRUE(highest.equal(torch::tensor({0.0F, static_cast<float>(ranks - 1)})));
  });
}

TEST_P(Collectives, BroadcastComesFromTheRoot) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    for (int root = 0; root < ranks; ++root) {
      at::Tensor tensor = torch::full({2, 2}, group->getRank() * 10.0);
      broadcast(*group, tensor, root);
      EXPECT_TRUE(tensor.equal(torch::full({2, 2}, root * 10.0)));
    }
  });
}

TEST_P(Collectives, AllGatherIsInRankOrder) {
  const int ranks = GetParam();
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    // Not contiguous on purpose.
    const auto mine = torch::arange(6).reshape({2, 3}).t() + 100 * group->getRank();
    const auto all = all_gather(*group, mine);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_TRUE(all[static_cast<std::size_t>(rank)].equal(torch::arange(6).reshape({2, 3}).t() +
                                                            100 * rank));
  });
}

TEST_P(Collectives, BarrierHoldsUntilAllAreThere) {
  const int ranks = GetParam();
  std::atomic<int> arrived{0};
  test::run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      barrier(*group);
      EXPECT_GE(arrived, round * ranks);
      barrier(*group);
    }
  });
}

TEST(CollectiveFailure, AMissingRankIsATimeoutThatSaysWhatWasWaitedFor) {
  std::promise<void> over;
  const auto ended = over.get_future().share();
  std::string caught;
  const auto thrown =
      test::try_thread_ranks({.world_size = 2, .timeout = 700ms}, [&](ProcessGroupPtr group) {
        at::Tensor tensor = torch::ones({4});
        all_reduce(*group, tensor);
        if (group->getRank() == 1) {  // is there, and never enters the second one
          ended.wait_for(30s);
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        try {
          all_reduce(*group, tensor);
        } catch (const CollectiveError& error) {
          EXPECT_EQ(error.rank, 0);
          EXPECT_EQ(error.operation, "all_reduce");
          EXPECT_EQ(error.sequence, 3);  // a barrier comes before, when the ranks are started
          EXPECT_EQ(error.timeout, 700ms);
          caught = error.what();
        }
        const auto waited = std::chrono::steady_clock::now() - start;
        EXPECT_GE(waited, 600ms);
        EXPECT_LT(waited, 5s);
        over.set_value();
      });
  for (const auto& error : thrown) EXPECT_EQ(error, nullptr);
  EXPECT_THAT(caught, ::testing::HasSubstr("all_reduce"));
  EXPECT_THAT(caught,
              ::testing::Not(::testing::HasSubstr("Exception raised from")));  // no stack trace
}

TEST(CollectiveFailure, ARankThatLeavesIsAnErrorAtOnceNotATimeout) {
  const auto start = std::chrono::steady_clock::now();
  const auto thrown =
      test::try_thread_ranks({.world_size = 2, .timeout = 60s}, [](ProcessGroupPtr group) {
        barrier(*group);  // both are connected
        if (group->getRank() == 1) return;
        at::Tensor tensor = torch::ones({4});
        EXPECT_THROW(all_reduce(*group, tensor), CollectiveError);
      });
  EXPECT_EQ(thrown[0], nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

// As NCCL's: wait() without a timeout lets a stream wait, and returns at once; with one it blocks,
// and throws when the peer does not come. One that was aborted beneath it counts as done.
class StreamWork : public c10d::Work {
 public:
  explicit StreamWork(bool ends) : ends_(ends) {}
  bool wait(std::chrono::milliseconds timeout) override {
    if (timeout == kNoTimeout || ends_) return true;
    throw std::runtime_error("no peer within " + std::to_string(timeout.count()) + " ms");
  }

 private:
  bool ends_;
};

class StreamBackend : public c10d::Backend {
 public:
  explicit StreamBackend(bool ends = false, c10d::ErrorType error = c10d::ErrorType::SUCCESS)
      : Backend(0, 2), ends_(ends), error_(error) {}
  c10d::ErrorType getError() override { return error_; }
  const std::string getBackendName() const override { return "nccl"; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("nccl", 1500ms);
  }
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return work(); }
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override { return work(); }
  WorkPtr allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override {
    return work();
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return work(); }

 private:
  WorkPtr work() const { return c10::make_intrusive<StreamWork>(ends_); }
  bool ends_;
  c10d::ErrorType error_;
};

ProcessGroupPtr group_over(c10::intrusive_ptr<StreamBackend> backend) {
  using Type = c10d::ProcessGroup::BackendType;
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
  group->setDefaultBackend(Type::NCCL);
  group->setBackend(c10::DeviceType::CPU, Type::NCCL, std::move(backend));
  return group;
}

TEST(CollectiveFailure, IsWaitedForWhereWaitingIsAStreamsAffair) {
  const auto group = group_over(c10::make_intrusive<StreamBackend>());
  at::Tensor tensor = torch::ones({4});
  const std::vector<std::function<void()>> calls{
      [&] { all_reduce(*group, tensor); }, [&] { broadcast(*group, tensor); },
      [&] { all_gather(*group, tensor); }, [&] { barrier(*group); }};
  for (const auto& call : calls) {
    try {
      call();
      ADD_FAILURE() << "nobody waited";
    } catch (const CollectiveError& error) {
      EXPECT_EQ(error.timeout, 1500ms);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("no peer within 1500 ms"));
    }
  }
}

// NCCL's watchdog aborts the communicator when an operation before has failed. This one is then over, with nothing done.
TEST(CollectiveFailure, OfAnOperationBeforeItIsNoResult) {
  at::Tensor tensor = torch::ones({4});
  const auto after = [&](c10d::ErrorType error) {
    std::string said;
    try {
      all_reduce(*group_over(c10::make_intrusive<StreamBackend>(true, error)), tensor);
    } catch (const CollectiveError& thrown) {
      said = thrown.what();
    }
    return said;
  };
  EXPECT_EQ(after(c10d::ErrorType::SUCCESS), "");
  EXPECT_THAT(after(c10d::ErrorType::TIMEOUT), ::testing::HasSubstr("before it timed out"));
  EXPECT_THAT(after(c10d::ErrorType::COMM_ERROR), ::testing::HasSubstr("before it failed"));
}

}  // namespace
}  // namespace lockstep
