// What is set for NCCL in this process, where the user has set it, has not, or has set it to nothing.
#include <gtest/gtest.h>
#include <lockstep/dist/backends.h>

#include <cstdlib>

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

}  // namespace
}  // namespace lockstep::detail
