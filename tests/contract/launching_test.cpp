// Jobs as they are launched: devices, nodes, threads, store, children, files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "expect.h"
#include "hang_job.h"
#include "job.h"

namespace lockstep::contract {
namespace {

using diagnose::State;
using trace::DataFile;
using trace::Device;
using trace::Place;
using trace::Shard;
using trace::Spawn;
using trace::StoreCall;

class Launching : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }
  int last() const { return GetParam() - 1; }

  // Two nodes of half the ranks each; two ranks are on one.
  int devices() const { return std::max(2, (world_size() + 1) / 2); }
  int local_rank(int rank) const { return rank % devices(); }
  Place place(int rank, std::int64_t threads = 1) const {
    const int node = rank / devices();
    return {.node = 7u + static_cast<std::uint64_t>(node),
            .local_rank = local_rank(rank),
            .local_world_size = std::min(devices(), world_size() - node * devices()),
            .processors = 2 * devices(),
            .threads = threads};
  }
  Device device(const std::string& moment, int rank, int index) const {
    const bool there = index < devices();
    return {moment, index, devices(),
            there ? 100u + static_cast<std::uint64_t>(rank / devices() * devices() + index) : 0u};
  }
  std::vector<int> ranks_where(const std::function<bool(int)>& is_one) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size(); ++rank)
      if (is_one(rank)) ranks.push_back(rank);
    return ranks;
  }

  // Every rank at its place, what it recorded then, and a collective that all do.
  trace::Trace job(const std::function<std::vector<trace::Payload>(int rank)>& recorded) const {
    HangJob job(world_size());
    for (int rank = 0; rank < world_size(); ++rank)
      for (const auto& payload : recorded(rank)) job.only(rank, payload);
    job.all(call("allreduce", 9));
    return job.play();
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Launching, testing::Values(2, 3, 4, 8),
                         testing::PrintToStringParamName());

// ---- devices ----

TEST_P(Launching, ByLocalRankIsRight) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, local_rank(rank)),
            device("group", rank, local_rank(rank))};
  }));
}

TEST_P(Launching, ByRankIsNamedOnTheSecondNode) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, rank)};
  });
  if (world_size() == 2) return expect_nothing(trace);  // one node
  expect_only(trace, "rank-as-device-index", ranks_where([&](int r) { return r >= devices(); }),
              -1);
}

TEST_P(Launching, WithHiddenDevicesIsNamedWhereTheLocalRankIsNoIndex) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    const int index = local_rank(rank);
    const auto own = device("chosen", rank, index).id;
    return {place(rank), Device{"chosen", index, 1, index == 0 ? own : 0}};
  });
  expect_only(trace, "visible-devices-remapped",
              ranks_where([&](int r) { return local_rank(r) > 0; }), -1);
}

TEST_P(Launching, WithOneVisibleDeviceEachMayAllUseIndexZero) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), Device{"chosen", 0, 1, device("chosen", rank, local_rank(rank)).id}};
  }));
}

TEST_P(Launching, OfTwoRanksOnOneDeviceIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, rank == 1 ? 0 : local_rank(rank))};
  });
  expect_only(trace, "duplicate-gpu", {0, 1}, -1);
}

TEST_P(Launching, OfAGroupOnTheCurrentDeviceIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, local_rank(rank)), device("group", rank, 0)};
  });
  expect_only(trace, "device-not-set", ranks_where([&](int r) { return local_rank(r) > 0; }), -1);
}

TEST_P(Launching, OfAGroupOnAnIdleDeviceIsNoFinding) {
  HangJob alone(world_size());
  alone.only(last(), Device{"chosen", 0, 2, 11}).only(last(), Device{"group", 1, 2, 12});
  for (int rank = 0; rank < last(); ++rank)
    alone.only(rank, Device{"chosen", 0, 1, 20u + static_cast<std::uint64_t>(rank)});
  expect_nothing(alone.play());
}

// ---- shards and threads ----

TEST_P(Launching, ShardsOfOneNodeAreNamedOnTwo) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), Shard{devices(), local_rank(rank)}};
  });
  if (world_size() == 2) {
    EXPECT_EQ(state(trace, "world-size-from-device-count"), State::not_applicable);
    return expect_nothing(trace);
  }
  expect_only(trace, "world-size-from-device-count", all_ranks(world_size()), -1);
}

TEST_P(Launching, ShardsOfTheWorldOrOfDataThatANodeHasAloneAreRight) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), Shard{world_size(), rank}};
  }));
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    trace::Dataset part{.phase = "train", .size = 8, .global_size = 16};
    part.ids_as_set = part.content_as_set = 1u + static_cast<std::uint64_t>(rank / devices());
    return {place(rank), part, Shard{devices(), local_rank(rank)}};
  }));
}

TEST_P(Launching, WithMoreThreadsThanProcessorsIsAdvice) {
  const auto with = [&](std::int64_t threads) {
    return job([&](int rank) -> std::vector<trace::Payload> { return {place(rank, threads)}; });
  };
  expect_nothing(with(1));
  expect_nothing(with(2));  // as many as there are
  const auto several = ranks_where([&](int r) { return place(r).local_world_size > 1; });
  // A node with one rank has room for three.
  expect_only(with(3), "thread-oversubscription", several, -1, diagnose::Severity::advice);
}

TEST_P(Launching, WithManyThreadsBeforeTrainingOnlyIsRight) {
  auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank, rank == 0 ? 64 : 1), place(rank, 1)};
  });
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events)
      if (std::holds_alternative<Place>(event.payload)) event.step = -1;
  expect_nothing(trace);
}

// ---- the store ----

TEST_P(Launching, AtATakenPortIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    if (rank > 0) return {};
    return {StoreCall{"serve", "127.0.0.1", 29500, EADDRINUSE}};
  });
  expect_only(trace, "fixed-port", {0}, -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("127.0.0.1, port 29500"),
            std::string::npos);
}

// Rank 0 begins to join `late` ticks after the others, who give up after ten.
trace::Trace unreached(int world_size, const std::vector<int>& failed, int late = 0) {
  constexpr std::int64_t kTick = 1'000'000;
  auto trace = empty_trace(world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    auto& of_rank = trace.ranks[static_cast<std::size_t>(rank)];
    const bool fails = std::find(failed.begin(), failed.end(), rank) != failed.end();
    record(of_rank, -1, trace::Group{"join", "0", {}});
    of_rank.events.back().time_ns = kTick * (rank == 0 ? late : 0);
    record(of_rank, -1,
           rank == 0 ? StoreCall{"serve", "172.17.0.1", 29500, ETIMEDOUT}
                     : StoreCall{"connect", "10.0.0.7", 29500, fails ? ETIMEDOUT : 0});
    of_rank.events.back().time_ns = kTick * (rank == 0 ? late + 11 : fails ? 10 : 1);
  }
  return trace;
}

TEST_P(Launching, AtAnAddressThatOthersDoNotReachNamesWhoServesThere) {
  auto others = all_ranks(world_size());
  others.erase(others.begin());
  const auto trace = unreached(world_size(), others);
  expect_only(trace, "wrong-network-interface", {0}, -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find(
                "serves the store at 172.17.0.1, port 29500"),
            std::string::npos);
  expect_nothing(unreached(world_size(), others, 9));   // comes when they have nearly given up
  expect_nothing(unreached(world_size(), others, 20));  // when they have
}

TEST(LaunchingMany, AtAnAddressThatFewDoNotReachNamesThose) {
  for (const int world_size : {4, 8})
    expect_only(unreached(world_size, {world_size - 1}), "wrong-network-interface",
                {world_size - 1}, -1);
}

TEST_P(Launching, OfANobodyWhoServesIsNoMatterOfInterfaces) {
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
INSTANTIATE_TEST_SUITE_P(Ranks, Leaving, testing::Values(2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST_P(Leaving, FirstWithTheStoreIsNamed) {
  expect_only(job_of("completed", false), "group-never-destroyed", {0}, -1);
}

TEST_P(Leaving, InOrderOrByAFailureOfItsOwnIsAnotherMatter) {
  EXPECT_EQ(state(job_of("completed", true), "group-never-destroyed"), State::clean);
  EXPECT_EQ(state(job_of("raised", false), "group-never-destroyed"), State::clean);
  EXPECT_EQ(state(job_of("signalled", false), "group-never-destroyed"), State::clean);
  auto unknown = job_of("completed", false);
  unknown.ends.clear();
  EXPECT_EQ(state(unknown, "group-never-destroyed"), State::not_triggered);
}

// ---- children and files ----

TEST_P(Launching, ByRanksIsNamed) {
  expect_only(job([&](int) -> std::vector<trace::Payload> {
                return {Spawn{world_size(), world_size()}};
              }),
              "spawn-under-launcher", all_ranks(world_size()), -1);
  expect_nothing(job([](int) -> std::vector<trace::Payload> { return {Spawn{4, 1}}; }));
}

// All ranks write; a collective keeps them apart where they do it one after the other.
class Preparing : public Launching {
 protected:
  trace::Trace job_of(bool own_files, bool in_turn) const {
    auto trace = empty_trace(world_size());
    std::int64_t now = 0;
    const auto record_next = [&](int rank, const trace::Payload& payload) {
      auto& events = trace.ranks[static_cast<std::size_t>(rank)];
      record(events, 0, payload);
      events.events.back().time_ns = now += 1000;
    };
    const auto file = [&](int rank) {
      return 50u + static_cast<std::uint64_t>(own_files ? rank : 0);
    };
    for (int rank = 0; rank < world_size(); ++rank) {
      record_next(rank, DataFile{"write_begin", file(rank), 0, true});
      if (in_turn) record_next(rank, DataFile{"write_end", file(rank), 9, true});
    }
    for (int rank = 0; !in_turn && rank < world_size(); ++rank)
      record_next(rank, DataFile{"write_end", file(rank), 9, true});
    for (int rank = 0; rank < world_size(); ++rank)
      record_next(rank, DataFile{"read", 50, 9, true});
    return trace;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Preparing, testing::Values(2, 3, 4, 8),
                         testing::PrintToStringParamName());

TEST_P(Preparing, OneFileAtTheSameTimeIsNamed) {
  expect_only(job_of(false, false), "every-rank-prepares-data", all_ranks(world_size()), -1);
}

TEST_P(Preparing, FilesOfTheirOwnOrOneAfterTheOtherIsRight) {
  expect_nothing(job_of(true, false));
  expect_nothing(job_of(false, true));
}

TEST_P(Preparing, WithAReaderInBetweenSaysWhoRead) {
  auto trace = job_of(false, true);
  // The last rank has not ended its writing when the others read.
  auto& events = trace.ranks.back().events;
  std::erase_if(events, [](const auto& event) {
    const auto* file = std::get_if<DataFile>(&event.payload);
    return file != nullptr && file->action == "write_end";
  });
  expect_only(trace, "every-rank-prepares-data", all_ranks(world_size()), -1);
  EXPECT_NE(diagnose::diagnose(trace).findings[0].evidence.find("rank 0 read it while rank"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::contract
