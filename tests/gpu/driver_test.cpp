// What is asked of libcuda.so.1 and libnvidia-ml.so.1, against ones that the test has written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>

#include "../support/program.h"

namespace lockstep::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string facts(std::map<std::string, std::string> environment,
                  const std::string& driver = FAKE_DRIVER) {
  environment["LD_LIBRARY_PATH"] = driver;
  const auto finished = lockstep::testing::run({GPU_FACTS}, environment);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  return finished.out;
}

TEST(AskDriver, SaysWhichGpusThereAre) {
  const auto said =
      facts({{"LOCKSTEP_FAKE_GPUS", "18:90 255:75"}, {"LOCKSTEP_FAKE_CUDA", "13020"}});
  EXPECT_THAT(said, HasSubstr("missing \ncuda 13020\n"));
  EXPECT_THAT(said, HasSubstr("gpu Pretend H200 | GPU-12121212-1212-1212-1212-121212121212 | "
                              "149250113536 | 9.0\n"));
  EXPECT_THAT(said, HasSubstr("gpu Pretend H200 | GPU-ffffffff-ffff-ffff-ffff-ffffffffffff | "
                              "149250113536 | 7.5\n"));
}

TEST(AskDriver, FindsNoGpuWhereCudaSaysSo) {
  const auto said = facts({{"LOCKSTEP_FAKE_INIT", "100"}, {"LOCKSTEP_FAKE_GPUS", "1:90"}});
  EXPECT_THAT(said, AllOf(HasSubstr("missing \n"), Not(HasSubstr("gpu Pretend"))));
}

TEST(AskDriver, SaysHowCudaFails) {
  const auto said = facts({{"LOCKSTEP_FAKE_INIT", "803"}, {"LOCKSTEP_FAKE_GPUS", "1:90"}});
  EXPECT_THAT(said,
              AllOf(HasSubstr("missing libcuda.so.1 is there, and cuInit ends with error 803"),
                    Not(HasSubstr("gpu Pretend"))));
}

// Something else under the driver's name.
TEST(AskDriver, TakesNoOtherLibraryForOne) {
  const TemporaryFolder folder("lockstep-test");
  std::filesystem::copy_file(FAKE_DRIVER "/libnvidia-ml.so.1", folder.path() / "libcuda.so.1");
  EXPECT_THAT(facts({}, folder.path()), HasSubstr("missing libcuda.so.1 is too old or no driver"));
  write_file(folder.path() / "libcuda.so.1", "no library");
  EXPECT_THAT(facts({}, folder.path()), HasSubstr("missing " + folder.path().string()));
}

TEST(AskUsage, CountsContextsAndBytes) {
  const auto said = facts({});
  EXPECT_THAT(said, HasSubstr("usage GPU-0 400 of 1000: 100=0 101=unknown 102=20"));
  EXPECT_THAT(said, HasSubstr(" 119=190\n")) << "more than there was room for at first";
  EXPECT_THAT(said, HasSubstr("usage GPU-1 401 of 1000:\n"));
}

}  // namespace
}  // namespace lockstep::gpu
