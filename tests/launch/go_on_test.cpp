// Ranks that go on in a fork of their launcher, in place of a command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/sanitized.h>
#include <lockstep/launch/launch.h>
#include <lockstep/launch/spawn.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>

namespace lockstep::launch {
namespace {

constexpr int kOther = 5;  // what the command ends with, which is to be seen where it runs

LaunchOptions job(const TemporaryFolder& folder, std::function<int()> go_on) {
  LaunchOptions options;
  options.command = {"sh", "-c", "exit " + std::to_string(kOther)};
  options.go_on = std::move(go_on);
  options.world_size = 2;
  options.folder = folder.path();
  return options;
}

std::string output_of(const TemporaryFolder& folder, int rank) {
  return read_file(folder.path() / ("rank_" + std::to_string(rank) + ".out"));
}

TEST(GoOn, ARankHasItsOwnEnvironmentProcessGroupAndOutput) {
  const TemporaryFolder folder("lockstep-go-on");
  setenv("LOCKSTEP_GO_ON_TEST", "the launcher's", 1);
  std::cout << "written before";  // and not flushed: it is to come once, from here
  auto options = job(folder, [launcher = getpid()] {
    const bool own = getpid() != launcher && getpgrp() == getpid();
    std::cout << environment("RANK").value_or("none") << " of "
              << environment("WORLD_SIZE").value_or("none") << ", "
              << environment("LOCKSTEP_GO_ON_TEST").value_or("none") << ", "
              << (own ? "own" : "not own");
    return 0;
  });
  options.environment["LOCKSTEP_GO_ON_TEST"] = "the rank's";
  EXPECT_TRUE(launch(options).completed());
  unsetenv("LOCKSTEP_GO_ON_TEST");
  std::cout << std::endl;
  EXPECT_EQ(output_of(folder, 0), "0 of 2, the rank's, own");
  EXPECT_EQ(output_of(folder, 1), "1 of 2, the rank's, own");
}

TEST(GoOn, HowItEndsIsTold) {
  const TemporaryFolder folder("lockstep-go-on");
  const auto code = launch(job(folder, [] { return environment("RANK") == "1" ? 3 : 0; }));
  EXPECT_EQ(code.root_cause, 1);
  EXPECT_EQ(code.ranks.at(1).exit_code, 3);
  const auto killed =
      launch(job(folder, [] { return environment("RANK") == "0" ? std::raise(SIGKILL) : 0; }));
  EXPECT_EQ(killed.root_cause, 0);
  EXPECT_EQ(killed.ranks.at(0).signal, SIGKILL);
}

// It does not reach the launcher's frames, which the rank has, too.
TEST(GoOn, AnExceptionEndsTheRank) {
  const TemporaryFolder folder("lockstep-go-on");
  const auto result = launch(job(folder, []() -> int {
    if (environment("RANK") == "1") throw std::runtime_error("no such data");
    return 0;
  }));
  EXPECT_EQ(result.root_cause, 1);
  EXPECT_EQ(result.ranks.at(0).exit_code, 0);
  EXPECT_EQ(result.ranks.at(1).exit_code, kCouldNotRun);
  EXPECT_THAT(result.summary(), ::testing::HasSubstr("no such data"));
}

// The thread sanitizer runs a thread of its own: in a forked child at once, elsewhere once the program starts a thread.
bool sanitizer_has_a_thread() {
  return kSanitized && !can_go_on_in_a_child();
}

TEST(GoOn, ARankMayLaunchAJobOfItsOwn) {
  const TemporaryFolder outer("lockstep-go-on");
  EXPECT_TRUE(launch(job(outer, [] {
                if (sanitizer_has_a_thread()) return 0;
                const TemporaryFolder inner("lockstep-go-on-inner");
                return launch(job(inner, [] { return 0; })).completed() ? 0 : 1;
              })).completed());
}

TEST(GoOn, WithASecondThreadTheCommandIsRun) {
  const TemporaryFolder folder("lockstep-go-on");
  EXPECT_TRUE(can_go_on_in_a_child());
  std::promise<void> done;
  std::thread other([wait = done.get_future().share()] { wait.wait(); });
  EXPECT_FALSE(can_go_on_in_a_child());
  const auto result = launch(job(folder, [] { return 0; }));
  done.set_value();
  other.join();
  EXPECT_EQ(result.ranks.at(0).exit_code, kOther);
}

TEST(GoOn, DescriptorsOfTheLauncherAreNotTheRanks) {
  if (sanitizer_has_a_thread()) GTEST_SKIP() << "the thread sanitizer has a thread here";
  const TemporaryFolder folder("lockstep-go-on");
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const auto result = launch(job(folder, [fd = ends[1]] { return write(fd, "x", 1) < 0 ? 0 : 1; }));
  EXPECT_TRUE(result.completed());
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lockstep::launch
