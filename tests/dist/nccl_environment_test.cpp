// What is set for NCCL in this process, where the user has set it, has not, or has set it to nothing.
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/backends.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

namespace lockstep::detail {
namespace {

constexpr const char* kVariable = "TORCH_NCCL_RETHROW_CUDA_ERRORS";

std::string after_setting(const char* value) {
  ::unsetenv(kVariable);
  if (value != nullptr) ::setenv(kVariable, value, 1);
  set_nccl_environment({});
  const std::string now = std::getenv(kVariable);
  ::unsetenv(kVariable);
  return now;
}

TEST(NcclEnvironment, IsSetWhereTheUserHasNotSetIt) {
  EXPECT_EQ(after_setting(nullptr), "0");
  EXPECT_EQ(after_setting("1"), "1");
  EXPECT_EQ(after_setting(""), "0");
}

// In a process of its own, since torch keeps its first answer for all of a process.
TEST(LoadBackendDeathTest, SaysThatTorchWasCalledBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto load = [](bool too_late) {
    if (too_late) torch::manual_seed(1);
    try {
      load_backend("nccl");
    } catch (const UsageError& error) {
      std::cerr << error.what();
      std::_Exit(2);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(load(false), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(load(true), ::testing::ExitedWithCode(2), "load_backend.*first in main");
}

}  // namespace
}  // namespace lockstep::detail
