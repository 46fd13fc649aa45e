// What launch() promises when the launcher itself is killed, interrupted or one of many.
#include <gmock/gmock.h>
#include <pty.h>

#include <array>
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

// Ctrl-C on a terminal goes to its foreground group: to the launcher, not to the ranks.
TEST_F(LaunchFault, CtrlCOnATerminalIsALineForEachRank) {
  std::vector<std::string> words{FAULT_RANK,
                                 "launch",
                                 "2",
                                 folder_.path().string(),
                                 "pid:" + path("zero") + ";hang",
                                 "ignore:15;pid:" + path("one") + ";hang"};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    std::signal(SIGINT, SIG_DFL);
    execv(FAULT_RANK, arguments.data());
    _exit(127);
  }
  ASSERT_GT(pid, 0);
  for (const char* rank : {"zero", "one"})
    EXPECT_TRUE(within(seconds(10), [&] { return std::filesystem::exists(path(rank)); }));
  EXPECT_EQ(write(terminal, "\x03", 1), 1);
  std::string said;
  std::array<char, 4096> some{};
  for (ssize_t size = 0; (size = read(terminal, some.data(), some.size())) > 0;)
    said.append(some.data(), static_cast<std::size_t>(size));
  int status = 0;
  EXPECT_TRUE(within(seconds(5), [&] { return waitpid(pid, &status, WNOHANG) == pid; }));
  close(terminal);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 130) << said;
  for (const std::string rank : {"rank 0", "rank 1"}) {
    const auto line = said.find("\n" + rank + " was ended by the launcher");
    EXPECT_NE(line, std::string::npos) << said;
    EXPECT_EQ(said.find(rank, line + 2), std::string::npos) << said;
  }
  for (const char* name : {"zero", "one"}) EXPECT_TRUE(gone(pid_in(name))) << name;
}

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
