// NCCL on a GPU; skipped where there is none. Faults among several ranks: tests/fault/nccl_fault_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <cstdlib>
#include <future>

#include "../support/gpus.h"
#include "../support/program.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::Optional;

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    // Else NCCL listens on two sockets until the process ends, which the check for what a test leaves would find.
    ::setenv("NCCL_RAS_ENABLE", "0", 1);
    try {
      load_backend("nccl");  // before anything of torch is called
    } catch (const UnavailableError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static InitOptions alone() { return {.backend = "nccl", .timeout = 60s}; }
};

TEST_F(Nccl, ReducesOnTheRanksGpu) {
  auto group = init_process_group(alone());
  const c10::Device device(c10::kCUDA, 0);
  EXPECT_EQ(device_of(*group), device);
  EXPECT_EQ(std::async(std::launch::async, [&] { return device_of(*group); }).get(), device);
  at::Tensor tensor = torch::full({1000}, 3.0F, device);
  all_reduce(*group, tensor);
  broadcast(*group, tensor);
  barrier(*group);
  EXPECT_TRUE(tensor.cpu().equal(torch::full({1000}, 3.0F)));
  EXPECT_TRUE(all_gather(*group, tensor).at(0).equal(tensor));
  destroy_process_group(group);
  EXPECT_FALSE(group);
}

TEST_F(Nccl, MakesGroupsOfItsRanks) {
  auto world = init_process_group(alone());
  for (const char* name : {"1", "2"}) {
    auto group = new_group(world, {0}, {.backend = "nccl", .high_priority_stream = true});
    EXPECT_EQ(group->getGroupName(), name);
    EXPECT_EQ(device_of(*group), device_of(*world));
    at::Tensor tensor = torch::ones({4}, device_of(*group));
    all_reduce(*group, tensor);
    EXPECT_TRUE(tensor.cpu().equal(torch::ones({4})));
    destroy_process_group(group);
  }
  destroy_process_group(world);
}

TEST_F(Nccl, KeepsTheProcessAliveUnlessTheUserSaysOtherwise) {
  ::setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "1", 1);
  auto group = init_process_group(alone());
  EXPECT_THAT(environment("TORCH_NCCL_ASYNC_ERROR_HANDLING"), Optional(std::string("2")));
  EXPECT_THAT(environment("TORCH_NCCL_DUMP_ON_TIMEOUT"), Optional(std::string("0")));
  EXPECT_THAT(environment("TORCH_NCCL_RETHROW_CUDA_ERRORS"), Optional(std::string("1")));
  EXPECT_THAT(environment("NCCL_SOCKET_IFNAME"), Optional(std::string("lo")));
  destroy_process_group(group);
}

// Whatever GPUs there are: the ranks take turns.
TEST_F(Nccl, ALessonsRanksShareAGpu) {
  const auto finished = testing::run({LESSON, "--variant", "correct", "--backend", "nccl",
                                      "--share-gpu", "--world-size", "3", "--timeout", "100"});
  EXPECT_EQ(finished.exit_code, 0) << finished.out << finished.err;
}

}  // namespace
}  // namespace lockstep
