// The look at what a test leaves behind (tests/support/nothing_left.h) sees what is left. The cases that
// leave something are a program of their own (leaving.cpp): they fail, as they should.
#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "../support/program.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

Finished run_case(const std::string& name) {
  return run({LEAVING, "--gtest_filter=Leaves." + name});
}

TEST(NothingLeft, SeesWhatATestLeaves) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"AChild", "the test leaves process "},
      {"AnOrphan", ": sleep 600"},
      {"ASocket", "the test leaves a socket that listens on 127.0.0.1 port "},
      {"SharedMemory", "the test leaves shared memory: lockstep-left-"},
      {"AFile", "the test leaves a temporary file: left.txt"},
  };
  for (const auto& [name, said] : cases) {
    const auto finished = run_case(name);
    EXPECT_EQ(finished.exit_code, 1) << name;
    EXPECT_THAT(finished.out, HasSubstr(said)) << name;
  }
  EXPECT_EQ(run_case("Nothing").exit_code, 0);
}

}  // namespace
}  // namespace lockstep::testing
