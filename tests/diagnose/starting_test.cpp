// How a job starts and ends: its store, its processes, its files.
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>

#include "launching.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using trace::DataFile;
using trace::Device;
using trace::Placement;
using trace::Spawn;
using trace::StoreCall;

class Starting : public Launching {};
INSTANTIATE_TEST_SUITE_P(Ranks, Starting, kTwoAndThree, testing::PrintToStringParamName());

// ---- the store ----

TEST_P(Starting, AtATakenPortIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    if (rank > 0) return {};
    return {StoreCall{"serve", "127.0.0.1", 29500, EADDRINUSE}};
  });
  expect_only(trace, "fixed-port", {0}, -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("127.0.0.1, port 29500"),
            std::string::npos);
}

TEST_P(Starting, AtATakenPortAndThenAtAnotherIsRight) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    if (rank > 0) return {};
    return {StoreCall{"serve", "127.0.0.1", 29500, EADDRINUSE},
            StoreCall{"serve", "127.0.0.1", 29501, 0}};
  }));
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    if (rank > 0) return {};
    return {StoreCall{"serve", "127.0.0.1", 29500, EADDRINUSE},
            trace::Group{"joined", "0", {}}};  // by a file, say
  }));
}

// What went wrong at the start and was got over explains nothing that comes later.
TEST_P(Starting, WithAFindingDoesNotHideADeath) {
  HangJob job(world_size());
  for (int rank = 0; rank < world_size(); ++rank)
    job.only(rank, place(rank)).only(rank, device("chosen", rank, 0));
  job.all(Spawn{2, 2});
  for (int i = 0; i < 50; ++i) job.all(call("allreduce", 9));
  for (int rank = 0; rank < last(); ++rank) job.only(rank, call("allreduce", 9));
  auto trace = job.play();
  for (int rank = 0; rank < world_size(); ++rank)
    end(trace, rank, rank == last() ? "signalled" : "raised", rank == last() ? SIGKILL : 0, true);
  std::vector<std::string> named;
  for (const auto& finding : diagnose::diagnose(trace).findings) named.push_back(finding.pitfall);
  EXPECT_NE(std::find(named.begin(), named.end(), "peer-dies"), named.end());
  EXPECT_NE(std::find(named.begin(), named.end(), "spawn-under-launcher"), named.end());
  EXPECT_NE(std::find(named.begin(), named.end(), "duplicate-gpu"), named.end());
}

// Rank 0 begins to join `late` milliseconds after the others, who give up after ten.
trace::Trace unreached(int world_size, const std::vector<int>& failed, int late = 0) {
  auto trace = empty_trace(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    auto& of_rank = trace.ranks[static_cast<std::size_t>(rank)];
    const bool fails = std::find(failed.begin(), failed.end(), rank) != failed.end();
    record(of_rank, -1, trace::Group{"join", "0", {}});
    of_rank.events.back().time_ns = kMillisecond * (rank == 0 ? late : 0);
    record(of_rank, -1,
           rank == 0 ? StoreCall{"serve", "172.17.0.1", 29500, ETIMEDOUT}
                     : StoreCall{"connect", "10.0.0.7", 29500, fails ? ETIMEDOUT : 0});
    of_rank.events.back().time_ns = kMillisecond * (rank == 0 ? late + 11 : fails ? 10 : 1);
  }
  return trace;
}

TEST_P(Starting, AtAnAddressThatOthersDoNotReachNamesWhoServesThere) {
  auto others = all_ranks(world_size());
  others.erase(others.begin());
  const auto trace = unreached(world_size(), others);
  expect_only(trace, "wrong-network-interface", {0}, -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find(
                "serves the store at 172.17.0.1, port 29500"),
            std::string::npos);
  expect_nothing(unreached(world_size(), others, 9));   // comes when they have nearly given up
  expect_nothing(unreached(world_size(), others, 20));  // when they have
  EXPECT_EQ(state(without<trace::Group>(trace), "wrong-network-interface"), State::not_triggered);
}

TEST_P(Starting, AtAnAddressThatIsReachedInTheEndIsRight) {
  auto others = all_ranks(world_size());
  others.erase(others.begin());
  auto again = unreached(world_size(), others);
  for (auto& rank : again.ranks) {
    if (rank.participant.rank == 0) continue;
    record(rank, -1, StoreCall{"connect", "172.17.0.1", 29500, 0});
    rank.events.back().time_ns = 20'000'000;
  }
  expect_nothing(again);
  // A rank that begins when the server has given up: the two were never there at the same time.
  auto late = unreached(world_size(), others);
  for (auto& rank : late.ranks)
    for (auto& event : rank.events)
      if (rank.participant.rank > 0) event.time_ns += 20'000'000;
  expect_nothing(late);
  // A name that stands for nothing is another matter.
  auto nameless = unreached(world_size(), others);
  for (auto [step, store] : each<StoreCall>(nameless))
    if (store.action == "connect") store.address.clear(), store.error = EHOSTUNREACH;
  expect_nothing(nameless);
}

TEST(StartingMany, AtAnAddressThatFewDoNotReachNamesThose) {
  for (const int world_size : {4, 8})
    expect_only(unreached(world_size, {world_size - 1}), "wrong-network-interface",
                {world_size - 1}, -1);
}

TEST_P(Starting, OfANobodyWhoServesIsNoMatterOfInterfaces) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    if (rank == 0) return {};  // never came
    return {StoreCall{"connect", "10.0.0.7", 29500, ETIMEDOUT}};
  }));
}

class Leaving : public Launching {
 protected:
  // Rank 0 serves the store, leaves as `how` says, and then the last rank uses it.
  trace::Trace job_of(const std::string& how, bool lets_go) const {
    HangJob job(world_size());
    job.only(0, StoreCall{"serve", "127.0.0.1", 29500, 0});
    job.all(trace::Group{"join", "0", {}}).all(trace::Group{"joined", "0", {}});
    job.all(call("allreduce", 9));
    if (lets_go) job.only(0, trace::Group{"leave", "0", {}});
    job.only(last(), StoreCall{"use", "", 0, ECONNRESET});
    auto trace = job.play();
    for (int rank = 0; rank < world_size(); ++rank)
      end(trace, rank,
          rank == last() ? "raised"
          : rank == 0    ? how
                         : "completed",
          rank == 0 && how == "signalled" ? SIGKILL : 0);
    return trace;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Leaving, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Leaving, FirstWithTheStoreIsNamed) {
  expect_only(job_of("completed", false), "group-never-destroyed", {0}, -1);
}

TEST_P(Leaving, FirstWithTheGroupDestroyedIsNamedToo) {
  const auto trace = job_of("completed", true);
  expect_only(trace, "group-never-destroyed", {0}, -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("without waiting for the others"),
            std::string::npos);
}

TEST_P(Leaving, ByAFailureOfItsOwnIsAnotherMatter) {
  EXPECT_EQ(state(job_of("raised", false), "group-never-destroyed"), State::clean);
  EXPECT_EQ(state(job_of("signalled", false), "group-never-destroyed"), State::clean);
  auto unknown = job_of("completed", false);
  unknown.ends.clear();
  EXPECT_EQ(state(unknown, "group-never-destroyed"), State::not_triggered);
}

// ---- children and files ----

TEST_P(Starting, ByRanksIsNamed) {
  expect_only(job([&](int) -> std::vector<trace::Payload> {
                return {Spawn{world_size(), world_size()}};
              }),
              "spawn-under-launcher", all_ranks(world_size()), -1);
  expect_nothing(job([](int) -> std::vector<trace::Payload> { return {Spawn{4, 1}}; }));
  // One rank a node that starts its node's ranks, and one rank that serves something.
  expect_nothing(job([&](int) -> std::vector<trace::Payload> {
    return {Spawn{8, 8 * world_size()}};
  }));
  expect_nothing(job([](int rank) -> std::vector<trace::Payload> {
    if (rank > 0) return {};
    return {Spawn{2, 2}};
  }));
}

// All ranks write, and then read.
class Preparing : public Launching {
 protected:
  struct Plan {
    bool own_files = false;
    bool in_turn = false;  // one after the other
    bool one_node = true;
  };
  trace::Trace job_of(const Plan& plan) const {
    auto trace = empty_trace(world_size());
    std::int64_t now = 0;
    const auto record_next = [&](int rank, const trace::Payload& payload) {
      auto& events = trace.ranks[static_cast<std::size_t>(rank)];
      record(events, -1, payload);
      events.events.back().time_ns = now += 1000;
    };
    const auto file = [&](int rank) {
      return 50u + static_cast<std::uint64_t>(plan.own_files ? rank : 0);
    };
    for (int rank = 0; rank < world_size(); ++rank)
      record_next(rank,
                  Placement{.node = plan.one_node ? 1u : 1u + static_cast<std::uint64_t>(rank),
                            .processors = 99,
                            .threads = 1});
    for (int rank = 0; rank < world_size(); ++rank) {
      record_next(rank, DataFile{"write_begin", file(rank), true});
      if (plan.in_turn) record_next(rank, DataFile{"write_end", file(rank), true});
    }
    for (int rank = 0; !plan.in_turn && rank < world_size(); ++rank)
      record_next(rank, DataFile{"write_end", file(rank), true});
    for (int rank = 0; rank < world_size(); ++rank) record_next(rank, DataFile{"read", 50, true});
    return trace;
  }
  // As if it had been broken off, with all that came after it.
  static void break_off_last_writing(trace::Trace& trace) {
    auto& events = trace.ranks.back().events;
    std::erase_if(events, [](const trace::Event& event) {
      const auto* file = event.as<DataFile>();
      return file != nullptr && file->action != "write_begin";
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Preparing, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Preparing, OneFileAtTheSameTimeIsAHazard) {
  expect_only(job_of({}), "every-rank-prepares-data", all_ranks(world_size()), -1,
              diagnose::Severity::advice);
}

// It may have gone well, and explains no fault of later.
TEST_P(Preparing, OneFileAtTheSameTimeHidesNoViolation) {
  auto trace = job_of({});
  for (auto& rank : trace.ranks)
    record(rank, 0, trace::ScaledStep{1024, false, rank.participant.rank != last()});
  std::vector<std::string> named;
  for (const auto& finding : diagnose::diagnose(trace).findings) named.push_back(finding.pitfall);
  EXPECT_EQ(named, (std::vector<std::string>{"local-overflow-skip", "every-rank-prepares-data"}));
}

TEST_P(Preparing, FilesOfTheirOwnOrOneAfterTheOtherIsRight) {
  expect_nothing(job_of({.own_files = true}));
  expect_nothing(job_of({.in_turn = true}));
  expect_nothing(job_of({.one_node = false}));  // each on its own disk, under one path
}

TEST_P(Preparing, WithAReaderOfHalfAFileSaysWhoReadIt) {
  auto trace = job_of({.in_turn = true});
  break_off_last_writing(trace);
  expect_nothing(trace);  // whoever reads finds all of it
  for (auto [step, file] : each<DataFile>(trace.ranks[0]))
    if (file.action == "read") file.accepted = false;
  expect_only(trace, "every-rank-prepares-data", all_ranks(world_size()), -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find(
                "rank 0 found half of it while rank " + std::to_string(last()) + " wrote"),
            std::string::npos);
}

// One rank fails to unpack, and another takes over.
TEST_P(Preparing, AfterAnotherHasGivenUpIsRight) {
  auto trace = empty_trace(world_size());
  for (int rank = 0; rank < 2; ++rank) {
    auto& events = trace.ranks[static_cast<std::size_t>(rank)];
    record(events, -1, Placement{.node = 1, .processors = 99, .threads = 1});
    record(events, -1, DataFile{"write_begin", 50, true});
    events.events.back().time_ns = 1000 * (rank + 1);
  }
  record(trace.ranks[1], -1, DataFile{"write_end", 50, true});
  trace.ranks[1].events.back().time_ns = 9000;
  expect_nothing(trace);
}

}  // namespace
}  // namespace lockstep::simulated
