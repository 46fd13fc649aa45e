// Where ranks stand: devices, nodes, shards of the data, threads.
#include <gtest/gtest.h>
#include <lockstep/trace/attempts.h>

#include <numeric>

#include "launching.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using trace::Device;
using trace::Placement;
using trace::Shard;

class Placing : public Launching {};
INSTANTIATE_TEST_SUITE_P(Ranks, Placing, kTwoToFour, testing::PrintToStringParamName());

// ---- devices ----

TEST_P(Placing, ByLocalRankIsRight) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, local_rank(rank)),
            device("group", rank, local_rank(rank))};
  }));
}

TEST_P(Placing, ByRankIsNamedOnTheSecondNode) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, rank)};
  });
  if (world_size() == 2) return expect_nothing(trace);  // one node
  expect_only(trace, "rank-as-device-index", ranks_where([&](int r) { return r >= devices(); }),
              -1);
}

TEST_P(Placing, WithHiddenDevicesIsNamedWhereTheLocalRankIsNoIndex) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), only_device(rank, local_rank(rank))};
  });
  expect_only(trace, "visible-devices-remapped",
              ranks_where([&](int r) { return local_rank(r) > 0; }), -1);
}

TEST_P(Placing, WithHiddenDevicesIndexedByRankIsTheWrongNumberFirst) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), only_device(rank, rank)};
  });
  if (world_size() == 2)  // on one node it is the local rank, too
    return expect_only(trace, "visible-devices-remapped", {1}, -1);
  expect_only(trace, "rank-as-device-index", ranks_where([](int r) { return r > 0; }), -1);
}

TEST_P(Placing, WithOneVisibleDeviceEachMayAllUseIndexZero) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), only_device(rank, 0)};
  }));
}

TEST_P(Placing, WithMoreRanksThanDevicesIsNoMatterOfHiddenOnes) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    const int index = local_rank(rank);
    return {place(rank), Device{"chosen", index, 1, 1, index == 0 ? 50u + place(rank).node : 0}};
  }));
}

TEST_P(Placing, OfOneDeviceUnderTwoIndicesIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    if (rank > 1) return {place(rank), device("chosen", rank, local_rank(rank))};
    return {place(rank), Device{"chosen", rank, 2, 2, 99}};  // rank 1 sees them the other way round
  });
  expect_only(trace, "visible-devices-remapped", {0, 1}, -1);
}

TEST_P(Placing, OnCpusOrAfterASecondChoiceIsRight) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), Device{"chosen", local_rank(rank), 0, 0, 0}};
  }));
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, 0), device("chosen", rank, local_rank(rank))};
  }));
}

TEST_P(Placing, OfTwoRanksOnOneDeviceIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, rank == 1 ? 0 : local_rank(rank))};
  });
  expect_only(trace, "duplicate-gpu", {0, 1}, -1);
}

// Not of what the devices are called.
TEST_P(Placing, OfRanksOnSharedDevicesIsToldInTheOrderOfTheRanks) {
  if (world_size() < 3) return;  // a device each
  for (const std::uint64_t first : {1u, 9u}) {
    const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
      const std::uint64_t id = 2 * rank < world_size() ? first : 10 - first;
      return {place(rank), Device{"chosen", 0, 1, 1, id}};
    });
    const auto evidence = diagnose::diagnose(trace).findings.at(0).evidence;
    EXPECT_EQ(evidence.substr(0, 7), "ranks 0") << evidence;
  }
}

TEST_P(Placing, OfAGroupOnTheCurrentDeviceIsNamed) {
  const auto trace = job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, local_rank(rank)), device("group", rank, 0)};
  });
  expect_only(trace, "device-not-set", ranks_where([&](int r) { return local_rank(r) > 0; }), -1);
}

TEST_P(Placing, OfAGroupOnAnIdleDeviceIsNoFinding) {
  HangJob alone(world_size());
  alone.only(last(), Device{"chosen", 0, 2, 2, 11}).only(last(), Device{"group", 1, 2, 2, 12});
  for (int rank = 0; rank < last(); ++rank)
    alone.only(rank, Device{"chosen", 0, 1, 1, 20u + static_cast<std::uint64_t>(rank)});
  expect_nothing(alone.play());
}

TEST_P(Placing, OfAGroupOnTheCpuBesideDevicesIsNoFinding) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    return {place(rank), device("chosen", rank, local_rank(rank)),
            Device{"group", 0, devices(), devices(), 0}};
  }));
}

// ---- shards and threads ----

class NodeShards : public Launching {
 protected:
  struct Plan {
    Shard shard;
    std::uint64_t held = 5;   // the data set, as its ids
    std::uint64_t model = 1;  // replicas have equal gradients
  };
  trace::Trace shards(const std::function<Plan(int rank)>& plan_of) const {
    return job([&](int rank) -> std::vector<trace::Payload> {
      const auto plan = plan_of(rank);
      trace::Dataset data{.phase = "train", .size = 8, .global_size = 16};
      data.ids_as_set = data.content_as_set = plan.held;
      trace::ReducedGradients reduced;
      reduced.values.push_back(summarize(Values{static_cast<double>(plan.model)}));
      return {place(rank), data, plan.shard, reduced};
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, NodeShards, kTwoToFour, testing::PrintToStringParamName());

TEST_P(NodeShards, ByOneNodesRanksIsNamedOnTwo) {
  const auto trace = shards([&](int rank) -> Plan {
    return {{"train", devices(), local_rank(rank)}};
  });
  if (world_size() == 2) {
    EXPECT_EQ(state(trace, "world-size-from-device-count"), State::not_applicable);
    return expect_nothing(trace);
  }
  expect_only(trace, "world-size-from-device-count", all_ranks(world_size()), -1);
  EXPECT_EQ(state(without<trace::ReducedGradients>(trace), "world-size-from-device-count"),
            State::not_triggered);
  EXPECT_EQ(state(without<trace::Dataset>(trace), "world-size-from-device-count"),
            State::not_triggered);
}

// One rank a node: every rank draws all, which has this reason.
TEST_P(NodeShards, ByOneNodesOnlyRankAreWhatEveryRankDraws) {
  const auto alone = [&](int rank) -> std::vector<trace::Payload> {
    auto here = place(rank);
    here.node = 1u + static_cast<std::uint64_t>(rank);
    here.local_rank = 0, here.local_world_size = 1;
    trace::Dataset data{.phase = "train", .size = 16, .global_size = 16};
    trace::ReducedGradients reduced;
    reduced.values.push_back(summarize(Values{1}));
    std::vector<std::int64_t> ids(16);
    std::iota(ids.begin(), ids.end(), 0);
    const trace::Samples all{"train", ids};
    return {here,
            data,
            Shard{"train", 1, 0},
            trace::Engine{"distributed_data_parallel", 1},
            trace::PassBegin{"train", 0},
            all,
            reduced,
            trace::PassEnd{"train", 0, 1}};
  };
  const auto trace = job(alone);
  EXPECT_EQ(state(trace, "no-sharding"), State::found);
  expect_only(trace, "world-size-from-device-count", all_ranks(world_size()), -1);
}

TEST_P(NodeShards, ByTheDevicesThatANodeHasIsNamedThoughItHasFewerRanks) {
  const int seen = devices() + 1;
  auto trace = shards([&](int rank) -> Plan { return {{"train", seen, local_rank(rank)}}; });
  for (auto& rank : trace.ranks) {
    const auto id = 70u + static_cast<std::uint64_t>(rank.participant.rank);
    record(rank, -1, Device{"chosen", 0, seen, seen, id});
  }
  if (seen >= world_size()) return expect_nothing(trace);
  expect_only(trace, "world-size-from-device-count", all_ranks(world_size()), -1);
}

TEST_P(NodeShards, OfTheWorldOrOfDataThatANodeHasAloneIsRight) {
  expect_nothing(shards([&](int rank) -> Plan { return {{"train", world_size(), rank}}; }));
  expect_nothing(shards([&](int rank) -> Plan {
    return {.shard = {"train", devices(), local_rank(rank)},
            .held = 5u + static_cast<std::uint64_t>(rank / devices())};
  }));
}

TEST_P(NodeShards, OfReplicasThatAreSeveralRanksIsRight) {
  // Tensor parallel inside of a node: its ranks share a shard.
  expect_nothing(shards([&](int rank) -> Plan {
    return {.shard = {"train", 2, rank / devices()},
            .model = 1u + static_cast<std::uint64_t>(rank % 2)};
  }));
  expect_nothing(shards([&](int rank) -> Plan { return {{"train", 2, rank / devices()}}; }));
  // Pipeline parallel across nodes: a stage is another model.
  if (world_size() > 2)
    expect_nothing(shards([&](int rank) -> Plan {
      return {.shard = {"train", devices(), local_rank(rank)},
              .model = 1u + static_cast<std::uint64_t>(rank / devices())};
    }));
}

TEST_P(NodeShards, OfAnEvaluationIsNotJudged) {
  auto trace = shards([&](int rank) -> Plan { return {{"train", world_size(), rank}}; });
  for (auto& rank : trace.ranks)
    record(rank, -1, Shard{"evaluation", devices(), local_rank(rank.participant.rank)});
  expect_nothing(trace);
}

TEST_P(Placing, WithMoreThreadsThanProcessorsIsAdvice) {
  const auto with = [&](std::int64_t threads) {
    return job([&](int rank) -> std::vector<trace::Payload> { return {place(rank, threads)}; });
  };
  expect_nothing(with(1));
  expect_nothing(with(2));  // as many as there are
  const auto several = ranks_where([&](int r) { return place(r).local_world_size > 1; });
  // A node with one rank has room for three.
  expect_only(with(3), "thread-oversubscription", several, -1, diagnose::Severity::advice);
}

// A rank has no fewer than one.
TEST_P(Placing, OfMoreRanksThanProcessorsOnOneThreadEachIsRight) {
  const auto with = [&](std::int64_t threads) {
    return job([&](int rank) -> std::vector<trace::Payload> {
      auto crowded = place(rank, threads);
      crowded.node = crowded.processors = 1;
      return {crowded};
    });
  };
  expect_nothing(with(1));
  expect_only(with(2), "thread-oversubscription", all_ranks(world_size()), -1,
              diagnose::Severity::advice);
}

TEST_P(Placing, WithThreadsForProcessorsOfItsOwnIsRight) {
  expect_nothing(job([&](int rank) -> std::vector<trace::Payload> {
    auto bound = place(rank, 8);
    bound.processors = 8;
    bound.processor_set = 30u + static_cast<std::uint64_t>(rank);
    return {bound};
  }));
}

TEST_P(Placing, WithManyThreadsBeforeTrainingOnlyIsRightInEveryAttempt) {
  const auto attempt = [&](std::int64_t number) {
    return job([&](int rank) -> std::vector<trace::Payload> {
      return {trace::Attempt{number, 1}, place(rank, rank == 0 ? 64 : 1), place(rank, 1),
              trace::Samples{"train", {rank}}};
    });
  };
  expect_nothing(attempt(0));
  expect_nothing(trace::concatenate({attempt(0), attempt(1)}));
  auto in_training = attempt(0);
  for (auto& rank : in_training.ranks) record(rank, 0, place(rank.participant.rank, 64));
  EXPECT_EQ(diagnose::diagnose(in_training).findings.at(0).pitfall, "thread-oversubscription");
}

}  // namespace
}  // namespace lockstep::simulated
