// The look at what a test leaves behind (tests/support/nothing_left.h) sees what is left. The cases that
// leave something are a program of their own (leaving.cpp): they fail, as they should.
#include "../support/nothing_left.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <lockstep/base/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <future>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../support/program.h"
#include "script.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

Finished run_case(const std::string& name,
                  const std::map<std::string, std::string>& environment = {}) {
  return run({LEAVING, "--gtest_filter=Leaves." + name}, environment);
}

TEST(NothingLeft, SeesWhatATestLeaves) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"AChild", "the test leaves process "},
      {"AnOrphan", ": sleep 600"},
      {"ASocket", "the test leaves a socket that listens on 127.0.0.1 port "},
      {"AFile", "the test leaves a temporary file: left.txt"},
  };
  for (const auto& [name, said] : cases) {
    const auto finished = run_case(name);
    EXPECT_EQ(finished.exit_code, 1) << name;
    EXPECT_THAT(finished.out, HasSubstr(said)) << name;
  }
  EXPECT_EQ(run_case("Nothing").exit_code, 0);
}

TEST(NothingLeft, SeesSharedMemory) {
  if (!test::has_own_shared_memory()) GTEST_SKIP() << "no mount namespace can be made here";
  const auto finished = run_case("SharedMemory");
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.out, HasSubstr("the test leaves shared memory: lockstep-left-"));
}

// As a training job beside the tests makes it, while one of them runs.
TEST(NothingLeft, LeavesTheSharedMemoryOfOthersAlone) {
  const TemporaryFolder folder("lockstep-others");
  const std::map<std::string, std::string> meeting{{"LOCKSTEP_MEETING", folder.path().string()}};
  auto test = std::async(std::launch::async, run_case, "NothingBesideAnother", meeting);
  fault::await(folder.path() / "begun");
  const std::string name = "/lockstep-another-" + std::to_string(getpid());
  const int segment = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  write_file(folder.path() / "made", "");
  const auto finished = test.get();
  EXPECT_EQ(finished.exit_code, 0) << finished.out;
  EXPECT_EQ(shm_unlink(name.c_str()), 0) << "the test removed what is not its own";
  close(segment);
}

}  // namespace
}  // namespace lockstep::testing
