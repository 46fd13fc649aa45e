#include <gtest/gtest.h>

#include <functional>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class Collectives : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, kTwoAndThree, testing::PrintToStringParamName());

// Three calls on every rank; `change` may alter the second of the last rank.
trace::Trace calls(int world_size, const std::string& op,
                   const std::function<void(trace::Collective&)>& change) {
  auto trace = empty_trace(world_size);
  for (int r = 0; r < world_size; ++r)
    for (int k = 1; k <= 3; ++k) {
      trace::Collective call{0, k, "world", op, "sum", -1, "float", {64}};
      if (k == 2 && r == world_size - 1) change(call);
      record(trace.ranks[r], k - 1, call, 100 * k);
    }
  return trace;
}

TEST_P(Collectives, ThatDifferAreNamedAtTheirSequence) {
  const std::vector<std::pair<std::string, std::function<void(trace::Collective&)>>> changes{
      {"collective-mismatch", [](auto& c) { c.op = "broadcast"; }},
      {"reduce-op-mismatch", [](auto& c) { c.reduce_op = "product"; }},
      {"root-mismatch", [](auto& c) { c.root = 1; }},
      {"dtype-mismatch", [](auto& c) { c.dtype = "int"; }},
      {"shape-mismatch", [](auto& c) { c.sizes = {65}; }}};
  for (const auto& [slug, change] : changes) {
    const auto trace = calls(GetParam(), "allreduce", change);
    expect_only(trace, slug, odd_one_out(GetParam(), GetParam() - 1), 1);
    EXPECT_EQ(diagnose::diagnose(trace).findings.at(0).sequence, 2);
  }
}

TEST_P(Collectives, ThatMayDifferAreRight) {
  expect_nothing(calls(GetParam(), "allreduce", [](auto&) {}));
  expect_nothing(calls(GetParam(), "allgather", [](auto& c) { c.sizes = {65}; }));
  expect_nothing(calls(GetParam(), "send", [](auto& c) { c.root = 1; }));
  // A rank that got less far is late, not different.
  auto trace = calls(GetParam(), "allreduce", [](auto&) {});
  trace.ranks.back().events.pop_back();
  expect_nothing(trace);
}

TEST_P(Collectives, ThatScatterUnequalPartsAreRight) {
  for (const auto* op : {"reduce_scatter", "_reduce_scatter_base"})
    expect_nothing(calls(GetParam(), op, [](auto& c) { c.sizes = {65}; }));
}

TEST_P(Collectives, OfTwoGroupsUnderOneNameAreRight) {
  auto trace = calls(GetParam(), "allreduce", [](auto&) {});
  // Ranks 0 and 1 have a group of their own, in which they get further.
  for (int r = 0; r < 2; ++r)
    for (int k = 1; k <= 4 + r; ++k)
      record(trace.ranks[r], 5, trace::Collective{0, k, "world", "broadcast", "", 0, "float", {8}});
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "collective-mismatch"), State::not_triggered);
}

TEST_P(Collectives, NeedToBeRecorded) {
  EXPECT_EQ(state(Job(GetParam()).run(), "collective-mismatch"), State::not_triggered);
  EXPECT_EQ(state(calls(1, "allreduce", [](auto& c) { c.sizes = {65}; }), "collective-mismatch"),
            State::not_applicable);
}

// Two updates of an engine with 64 elements, which reduces them at once; before its second reduction the last rank
// reduces a number.
TEST_P(Collectives, OfOneRankBeforeTheEnginesAreItsOwn) {
  for (const bool engine_only : {true, false}) {
    auto trace = calls(GetParam(), "allreduce", [](auto& c) { c.sizes = {1}; });
    for (auto& rank : trace.ranks) {
      std::vector<trace::Event> calls = std::move(rank.events);
      calls.pop_back();  // nobody gets further
      rank.events.clear();
      record(rank, -1, trace::Model{{"w"}, {{64}}, {"float"}});
      record(rank, -1, trace::Engine{"distributed_data_parallel", 1});
      for (auto& call : calls) {
        const auto step = call.step;
        record(rank, step, trace::Forward{true});
        rank.events.push_back(std::move(call));
        // Something else is reduced in every update: whose call has another size is not known.
        if (!engine_only)
          record(rank, step,
                 trace::Collective{0, step + 1, "own", "allreduce", "sum", -1, "float", {8}}, 1);
        record(rank, step, trace::Update{{0.1}});
      }
    }
    const auto last = GetParam() - 1;
    if (engine_only)
      expect_only(trace, "rank-conditional-collective", {last}, 1);
    else
      expect_only(trace, "shape-mismatch", odd_one_out(GetParam(), last), 1);
  }
}

// Four updates that reduce 64 numbers each. Then the last rank makes `other`, after further updates of its own.
trace::Trace leaves_the_loop(int world_size, const trace::Collective& other, int updates = 0) {
  auto trace = empty_trace(world_size);
  for (auto& rank : trace.ranks) {
    std::int64_t step = 0;
    for (; step < 4; ++step) {
      record(rank, step, call(step + 1, "0", "allreduce", -1, 64));
      record(rank, step, trace::Update{{0.1}});
    }
    const bool leaves = rank.participant.rank == world_size - 1;
    for (int i = 0; leaves && i < updates; ++i) record(rank, step++, trace::Update{{0.1}});
    record(rank, step, leaves ? other : call(5, "0", "allreduce", -1, 64), 0);
    rank.closed = false;
  }
  return trace;
}

TEST_P(Collectives, OfARankThatHasLeftTheLoopAreNoOtherDtype) {
  auto figure = call(5, "0", "allreduce", -1, 2);
  figure.dtype = "float64";
  expect_only(leaves_the_loop(GetParam(), figure), "rank-conditional-collective",
              odd_one_out(GetParam(), GetParam() - 1), 4);
  figure.sizes = {64};
  expect_only(leaves_the_loop(GetParam(), figure), "dtype-mismatch",
              odd_one_out(GetParam(), GetParam() - 1), 4);
}

TEST_P(Collectives, OfRanksInDifferentUpdatesAreNoOtherDtype) {
  auto figure = call(5, "0", "allreduce", -1, 2);
  figure.dtype = "float64";
  expect_only(leaves_the_loop(GetParam(), figure, 2), "rank-conditional-collective",
              odd_one_out(GetParam(), GetParam() - 1), 4);
}

TEST_P(Collectives, OfAnotherModelAreExplainedByIt) {
  auto trace = calls(GetParam(), "allreduce", [](auto& c) { c.sizes = {65}; });
  for (int r = 0; r < GetParam(); ++r)
    record(trace.ranks[r], -1, trace::Model{{"w"}, {{r == 0 ? 3 : 2}}, {"float"}});
  expect_only(trace, "parameters-differ-across-ranks", odd_one_out(GetParam(), 0), -1);
}

}  // namespace
}  // namespace lockstep::simulated
