// What launch() promises when the launcher itself is killed, interrupted or one of many.
#include <gmock/gmock.h>

#include <memory>

#include "launch_fixture.h"

namespace lockstep::launch {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(LaunchFault, KilledSupervisorLeavesNoRank) {
  Launcher launcher(folder_.path(),
                    {"pid:" + path("zero") + ";hang", "ignore:15;pid:" + path("one") + ";hang"});
  for (const char* rank : {"zero", "one"})
    ASSERT_TRUE(within(seconds(10), [&] { return std::filesystem::exists(path(rank)); }))
        << launcher.output();
  const pid_t zero = pid_in("zero"), one = pid_in("one");
  ASSERT_FALSE(gone(zero) || gone(one));
  kill(launcher.pid(), SIGKILL);
  EXPECT_TRUE(within(seconds(2), [&] { return gone(zero) && gone(one); }));
}

class Interrupted : public LaunchFault, public ::testing::WithParamInterface<int> {};

TEST_P(Interrupted, EndsTheRanksAndExitsAsAShellExpects) {
  Launcher launcher(folder_.path(), {"orphan:" + path("orphan") + ";pid:" + path("zero") + ";hang",
                                     "ignore:15;pid:" + path("one") + ";hang"});
  for (const char* rank : {"zero", "one"})
    ASSERT_TRUE(within(seconds(10), [&] { return std::filesystem::exists(path(rank)); }))
        << launcher.output();
  kill(launcher.pid(), GetParam());
  EXPECT_EQ(launcher.exit_code(seconds(5)), 128 + GetParam());
  EXPECT_THAT(launcher.output(),
              AllOf(HasSubstr("interrupted by signal"), HasSubstr("\nrank 0 was ended"),
                    HasSubstr("\nrank 1 was ended")));
  for (const char* name : {"zero", "one", "orphan"}) EXPECT_TRUE(gone(pid_in(name))) << name;
}
INSTANTIATE_TEST_SUITE_P(Signals, Interrupted, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_F(LaunchFault, AHundredLaunchersAtOnce) {
  std::vector<std::unique_ptr<TemporaryFolder>> folders;
  std::vector<std::unique_ptr<Launcher>> launchers;
  for (int i = 0; i < 100; ++i) {
    folders.push_back(std::make_unique<TemporaryFolder>("lockstep-many"));
    const std::string store = (folders.back()->path() / "met").string();
    launchers.push_back(std::make_unique<Launcher>(
        folders.back()->path(), std::vector<std::string>{"await:" + store, "pid:" + store}));
  }
  for (auto& launcher : launchers)
    EXPECT_EQ(launcher->exit_code(seconds(30)), 0) << launcher->output();
}

}  // namespace
}  // namespace lockstep::launch
