// What only a fake of the system can show: a process that no signal ends, and an end that the launcher has just seen.
#include <gmock/gmock.h>
#include <lockstep/launch/waiter.h>

#include "launch_fixture.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Whether or not it has ended, the process whose id the file holds has not, and is still there at the end, as is
// one that it started.
Waiter uninterruptible(const std::string& file, pid_t grandchild) {
  Waiter waiter = system_waiter();
  const auto pid = [file] {
    return std::filesystem::exists(file) ? std::stoi(read_file(file)) : -1;
  };
  waiter.has_ended = [pid, really = waiter.has_ended](pid_t child, siginfo_t& info) {
    return child != pid() && really(child, info);
  };
  waiter.end_children = [=, really = waiter.end_children](const std::set<pid_t>& spared,
                                                          std::int64_t until_ns) {
    really(spared, until_ns);
    within(seconds(20), [&] { return monotonic_ns() >= until_ns; });
    std::set<pid_t> left{grandchild};
    if (pid() > 0) left.insert(pid());
    return left;
  };
  return waiter;
}

constexpr pid_t kGrandchild = 999'999'999;  // none has such a number

class Uninterruptible : public LaunchFault {
 protected:
  LaunchResult run(const LaunchOptions& options) {
    ::testing::internal::CaptureStderr();
    const auto begin = monotonic_ns();
    const auto result = launch(options, uninterruptible(path("one"), kGrandchild));
    took_ = std::chrono::nanoseconds(monotonic_ns() - begin);
    said_ = ::testing::internal::GetCapturedStderr();
    return result;
  }
  std::string line() const {
    return "process " + read_file(path("one")) +
           " is still there after SIGKILL, in uninterruptible sleep";
  }
  std::chrono::nanoseconds took_{0};
  std::string said_;
};

TEST_F(Uninterruptible, ARankIsNamedWithItsProcessAtTheDeadline) {
  auto options = ranks_that({"hang", "pid:" + path("one") + ";hang"});
  options.deadline = milliseconds(1'500);
  const auto result = run(options);
  EXPECT_TRUE(result.deadline_expired);
  EXPECT_LT(took_, options.deadline + options.grace + seconds(2));
  EXPECT_EQ(result.ranks[0].signal, SIGTERM);
  EXPECT_EQ(result.ranks[1].end, End::deadline);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  EXPECT_THAT(result.summary(), HasSubstr("rank 1 was still running at the deadline; " + line()));
}

TEST_F(Uninterruptible, ARankIsNamedBehindTheOneThatFailed) {
  const auto options =
      ranks_that({"await:" + path("one") + ";raise:disk on fire", "pid:" + path("one") + ";hang"});
  const auto result = run(options);
  EXPECT_EQ(result.root_cause, 0);
  EXPECT_LT(result.wall,
            options.linger + options.grace + seconds(2) + seconds(1));  // a second to start
  EXPECT_THAT(result.summary(), HasSubstr("first: rank 0 raised: disk on fire"));
  EXPECT_THAT(result.summary(), HasSubstr("rank 1 was ended by the launcher; " + line()));
}

TEST_F(Uninterruptible, WhatARankStartedIsNamedToo) {
  const auto result = run(ranks_that({"", ""}));
  EXPECT_TRUE(result.completed());
  EXPECT_LT(took_, seconds(2) + seconds(1));
  EXPECT_THAT(said_,
              HasSubstr("warning: process " + std::to_string(kGrandchild) + " is still there"));
}

// Rank 1 ends once the launcher has seen rank 0 completed.
TEST_F(LaunchFault, ARankThatCompletesTakesNoTimeFromTheOthers) {
  auto options = ranks_that({"", "await:" + path("seen")});
  options.linger = milliseconds(0);
  Waiter waiter = system_waiter();
  waiter.has_ended = [this, really = waiter.has_ended](pid_t child, siginfo_t& info) {
    const bool ended = really(child, info);
    if (ended) write_file(path("seen"), "");
    return ended;
  };
  EXPECT_EQ(launch(options, waiter).ranks.at(1).end, End::completed);
}

}  // namespace
}  // namespace lockstep::launch
