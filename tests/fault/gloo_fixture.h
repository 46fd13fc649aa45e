// Gloo jobs whose operations time out after a second, under the supervisor.
#pragma once

#include <gmock/gmock.h>
#include <lockstep/diagnose/stall.h>
#include <lockstep/launch/supervise.h>

#include "launch_fixture.h"

namespace lockstep::launch {

constexpr std::chrono::milliseconds kTimeout{1000};   // T
constexpr std::chrono::milliseconds kPatience{2000};  // T and a second: ranks speak first
constexpr std::chrono::milliseconds kNamed{kTimeout.count() + 2000};  // by when it must be told

class GlooFault : public launch::LaunchFault {
 protected:
  launch::LaunchOptions job_of(std::vector<std::string> scripts) const {
    auto job = ranks_that(std::move(scripts), GLOO_RANK);
    job.deadline = std::chrono::seconds(30);
    job.environment["LOCKSTEP_FAULT_TIMEOUT_MS"] = std::to_string(kTimeout.count());
    return job;
  }
  // All meet, make a group and complete one all-reduce, and then do what their script says.
  Supervised of(std::vector<std::string> scripts) {
    for (auto& script : scripts) script = "meet;init;allreduce;" + script;
    return run(job_of(std::move(scripts)));
  }
  Supervised run(const launch::LaunchOptions& job, std::chrono::milliseconds patience = kPatience) {
    auto result = supervise({.job = job, .patience = patience});
    told_ns_ = monotonic_ns();
    return result;
  }
  // From when the first rank came to where the job stopped until it was told.
  std::chrono::nanoseconds took(const Supervised& result) const {
    if (!result.stall) return std::chrono::hours(1);
    return std::chrono::nanoseconds(told_ns_ - result.stall->time_ns);
  }
  static std::vector<std::pair<int, diagnose::RankState>> culprits(const Supervised& result) {
    std::vector<std::pair<int, diagnose::RankState>> found;
    if (result.stall)
      for (const auto* rank : result.stall->culprits()) found.emplace_back(rank->rank, rank->state);
    return found;
  }
  static std::string text(const Supervised& result) {
    return (result.stall ? diagnose::to_text(*result.stall) : "no stall") + "\n" +
           result.launch.summary();
  }

 private:
  std::int64_t told_ns_ = 0;
};

}  // namespace lockstep::launch
