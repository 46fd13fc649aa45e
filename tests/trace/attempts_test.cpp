// The traces of a job's attempts, one after another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/alone_before.h>
#include <lockstep/trace/attempts.h>

namespace lockstep::trace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two updates and a collective, from -1 on, on each of these ranks.
Trace attempt(const std::vector<int>& ranks, int world_size = 2, std::int64_t time = 100) {
  Trace trace;
  trace.world_size = world_size;
  for (const int rank : ranks) {
    ParticipantTrace of_rank;
    of_rank.participant = {rank, world_size, "process"};
    of_rank.closed = true;
    of_rank.pid = time;
    of_rank.started_ns = time;
    of_rank.events = {{time, -1, Parameters{}},
                      {time + 1, 0, Collective{.sequence = 1, .group = "0"}},
                      {time + 2, 0, Update{{0.1}}},
                      {time + 3, 1, Update{{0.1}}}};
    trace.ranks.push_back(of_rank);
  }
  return trace;
}

std::vector<std::int64_t> steps(const ParticipantTrace& rank) {
  std::vector<std::int64_t> all;
  for (const auto& event : rank.events) all.push_back(event.step);
  return all;
}

TEST(Attempts, OneIsAsItWas) {
  const auto trace = concatenate({attempt({0, 1})});
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.world_size, 2);
  EXPECT_THAT(steps(trace.ranks[1]), ElementsAre(-1, 0, 0, 1));
  EXPECT_EQ(trace.ranks[0].all<Collective>()[0].event->group, "0");
  EXPECT_TRUE(trace.ranks[0].closed);
}

TEST(Attempts, GoOnCounting) {
  auto first = attempt({0, 1}, 2, 1000);
  first.ranks[1].events.pop_back();  // was killed a step earlier
  first.ranks[1].closed = false;
  const auto trace = concatenate({first, attempt({1, 0}, 2, 5000), attempt({0, 1}, 2, 10)});
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.ranks[0].participant.rank, 0);
  EXPECT_THAT(steps(trace.ranks[0]), ElementsAre(-1, 0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7));
  EXPECT_THAT(steps(trace.ranks[1]), ElementsAre(-1, 0, 0, 2, 3, 3, 4, 5, 6, 6, 7));
  EXPECT_TRUE(trace.ranks[1].closed);
  EXPECT_EQ(trace.ranks[1].started_ns, 1000);
  const auto calls = trace.ranks[0].all<Collective>();
  EXPECT_EQ(calls[0].event->group, "0");
  EXPECT_NE(calls[1].event->group, calls[0].event->group);
  EXPECT_NE(calls[1].event->group, calls[2].event->group);
  for (const auto& rank : trace.ranks)  // the last one's clock began anew
    for (std::size_t i = 1; i < rank.events.size(); ++i)
      EXPECT_GE(rank.events[i].time_ns, rank.events[i - 1].time_ns);
}

TEST(Attempts, ARankMayBeMissingFromOne) {
  const auto trace = concatenate({attempt({0}), attempt({0, 1})});
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_THAT(steps(trace.ranks[1]), ElementsAre(2, 3, 3, 4));
}

TEST(Attempts, OfOtherWorldSizesAreRefused) {
  try {
    concatenate({attempt({0, 1}), attempt({0, 1, 2}, 3)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("of 2 and of 3 ranks"));
  }
  EXPECT_THROW(concatenate({}), UsageError);
}

TEST(Attempts, NoStepIsCountedBeyondTheMost) {
  auto first = attempt({0, 1});
  for (auto& rank : first.ranks) rank.events.back().step = kMostSteps;
  const auto job = concatenate({first, attempt({0, 1}, 2, 200)});
  EXPECT_EQ(job.ranks[0].events.back().step, kMostSteps);
}

Event model(std::int64_t step, std::int64_t size) {
  return {0, step, Model{.names = {"w"}, .shapes = {{size}}, .dtypes = {"float32"}}};
}

// Two ranks that train a model of 8, and tell it before or after they meet in the collective `sequence`. Before that
// rank 0 trains one of this size, twice.
Trace one_trained_before(std::int64_t size, bool tells_first = false, std::int64_t sequence = 1) {
  Trace trace;
  trace.world_size = 2;
  for (const int number : {0, 1}) {
    ParticipantTrace rank;
    rank.participant = {number, 2, "process"};
    const std::int64_t before = number == 0 ? 2 : 0;
    const auto call = [&](std::int64_t step, std::int64_t of) {
      rank.events.push_back({0, step, Collective{.sequence = of, .group = "0", .op = "barrier"}});
    };
    rank.events.push_back({0, -1, Group{.action = "join", .name = "0"}});
    for (std::int64_t earlier = 1; earlier < sequence; ++earlier) call(-1, earlier);
    if (number == 0) {
      rank.events.push_back(model(-1, size));
      for (const std::int64_t step : {0, 1}) rank.events.push_back({0, step, Update{{0.1}}});
      rank.events.push_back({0, 1, Parameters{}});  // that the last update left
    }
    if (tells_first) rank.events.push_back(model(before, 8));
    call(number == 0 ? before : -1, sequence);
    if (!tells_first) rank.events.push_back(model(before, 8));
    for (const std::int64_t step : {0, 1}) rank.events.push_back({0, before + step, Update{{0.1}}});
    trace.ranks.push_back(std::move(rank));
  }
  return trace;
}

TEST(AloneBefore, AnotherModelIsLeftOutAndStepsAreCountedFromThere) {
  auto trace = one_trained_before(3);
  leave_out_alone_before(trace);
  EXPECT_THAT(steps(trace.ranks[0]), ElementsAre(-1, 0, 0, 0, 1));
  EXPECT_THAT(steps(trace.ranks[1]), ElementsAre(-1, -1, 0, 0, 1));
  EXPECT_EQ(trace.ranks[0].all<Model>()[0].event->shapes[0][0], 8);
  EXPECT_EQ(trace.ranks[0].all<Group>().size(), 1u);
}

TEST(AloneBefore, TheModelMayBeToldBeforeTheRanksMeetAndTheyMayHaveMetBefore) {
  auto first = one_trained_before(3, true), later = one_trained_before(3, true, 2);
  leave_out_alone_before(first);
  EXPECT_THAT(steps(first.ranks[0]), ElementsAre(-1, 0, 0, 0, 1));
  EXPECT_EQ(first.ranks[0].all<Model>()[0].event->shapes[0][0], 8);
  leave_out_alone_before(later);
  EXPECT_THAT(steps(later.ranks[0]), ElementsAre(-1, -1, 0, 0, 0, 1));
}

TEST(AloneBefore, ConcatenatingLeavesItOut) {
  EXPECT_THAT(steps(concatenate({one_trained_before(3)}).ranks[0]), ElementsAre(-1, 0, 0, 0, 1));
}

// Each rank trains probes of its own, as often as its number says, and then a model that an engine shares.
TEST(AloneBefore, WhatEachRankTrainedForItselfIsLeftOutUpToTheModelThatTheyShare) {
  Trace trace{.world_size = 2};
  for (const int number : {0, 1}) {
    ParticipantTrace rank;
    rank.participant = {number, 2, "process"};
    std::int64_t step = 0;
    rank.events.push_back({0, -1, Placement{}});
    for (int probe = 0; probe <= number; ++probe) {
      rank.events.push_back(model(step, 3));
      rank.events.push_back({0, step, Update{{0.1}}});
      rank.events.push_back({0, ++step, AnotherModel{}});
    }
    rank.events.push_back(model(step, 8));
    rank.events.push_back({0, step, Engine{"distributed_data_parallel", 1}});
    rank.events.push_back({0, step, Update{{0.1}}});
    rank.events.push_back({0, step + 1, AnotherModel{}});
    rank.events.push_back(model(step + 1, 8));  // of a job in two stages
    trace.ranks.push_back(std::move(rank));
  }
  leave_out_alone_before(trace);
  for (const auto& rank : trace.ranks) {
    EXPECT_THAT(steps(rank), ElementsAre(-1, 0, 0, 0, 0, 1, 1));
    EXPECT_EQ(rank.all<Placement>().size(), 1u);
  }
}

TEST(AloneBefore, TheJobsOwnModelStaysAndSoDoesWhatEveryRankTrained) {
  auto same = one_trained_before(8);
  leave_out_alone_before(same);
  EXPECT_THAT(steps(same.ranks[0]), ElementsAre(-1, -1, 0, 1, 1, 2, 2, 2, 3));
  auto both = one_trained_before(3);
  auto& events = both.ranks[1].events;
  events.insert(events.begin() + 1, {0, 0, Update{{0.1}}});
  const auto before = steps(both.ranks[0]);
  leave_out_alone_before(both);
  EXPECT_EQ(steps(both.ranks[0]), before);
  auto no_collective = one_trained_before(3);
  std::erase_if(no_collective.ranks[1].events,
                [](const Event& event) { return event.is<Collective>(); });
  leave_out_alone_before(no_collective);
  EXPECT_EQ(steps(no_collective.ranks[0]), before);
}

// Somebody else's run may be behind it.
TEST(Attempts, ALinkIsNone) {
  const TemporaryFolder folder("lockstep-attempts");
  const auto other = folder.path() / "other", job = folder.path() / "job";
  std::filesystem::create_directories(other);
  std::filesystem::create_directories(attempt_folder(job, 1));
  for (const auto& link : {attempt_folder(job, 0), job / "alone"})
    std::filesystem::create_directory_symlink(other, link);
  EXPECT_THAT(attempt_folders(job), ElementsAre(job));
  std::filesystem::remove(attempt_folder(job, 0));
  std::filesystem::create_directory_symlink(attempt_folder(job, 0), attempt_folder(job, 0));
  EXPECT_THAT(attempt_folders(job), ElementsAre(job))
      << "a link to itself, of which the system cannot say what it is";
}

// Of damaged traces.
TEST(Attempts, TimesStayWhereTheyCanBeDoubled) {
  constexpr auto kMost = std::int64_t{1} << 60;
  auto one = attempt({0, 1});
  one.ranks[0].events.front().time_ns = -kMost;
  one.ranks[0].events.back().time_ns = kMost;
  const auto whole = concatenate(std::vector<Trace>(10, one));
  for (const auto& event : whole.ranks[0].events) {
    EXPECT_GE(event.time_ns, -kMost);
    EXPECT_LE(event.time_ns, kMost);
  }
}

}  // namespace
}  // namespace lockstep::trace
