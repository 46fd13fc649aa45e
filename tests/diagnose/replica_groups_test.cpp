// Jobs whose ranks do not all train one model: they are compared where they do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/diagnose/text.h>

#include "expect.h"
#include "job.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;
using testing::HasSubstr;

Job first_stage() {
  return Job(2);
}

Job last_stage() {
  Job job(2);
  job.layers = 2;
  job.lr = [](int) { return 0.05; };
  job.reference_lr = 0.025;
  return job;
}

// Ranks 0 and 2 train one model, ranks 1 and 3 another, each pair on the same shares of the data.
trace::Trace side_by_side(const Job& even, const Job& odd, bool told = true) {
  auto whole = empty_trace(4);
  const auto runs = {even.run(), odd.run()};
  int first = 0;
  for (const auto& run : runs) {
    for (const auto& of_pair : run.ranks) {
      auto& rank = whole.ranks[static_cast<std::size_t>(2 * of_pair.participant.rank + first)];
      if (told) record(rank, -1, trace::Group{"replicas", "", {first, first + 2}});
      for (auto event : of_pair.events) {
        event.time_ns = static_cast<std::int64_t>(rank.events.size()) + 1;
        rank.events.push_back(std::move(event));
      }
    }
    ++first;
  }
  return whole;
}

// As diagnose() says it: of the replica groups together.
State state_of(const trace::Trace& trace, const std::string& slug) {
  for (const auto& row : diagnose::diagnose(trace).rows)
    if (row.slug == slug) return row.verdict.state;
  return State::not_triggered;
}

std::string text_of(const trace::Trace& trace) {
  return diagnose::to_text(diagnose::diagnose(trace));
}

TEST(ReplicaGroups, AreComparedWithinThemselves) {
  expect_nothing(side_by_side(first_stage(), last_stage()));
  EXPECT_THAT(text_of(side_by_side(first_stage(), last_stage())),
              HasSubstr("ranks 0 and 2; ranks 1"));
}

TEST(ReplicaGroups, ThatNobodyToldAreOneModel) {
  EXPECT_EQ(
      diagnose::diagnose(side_by_side(first_stage(), last_stage(), false)).findings[0].pitfall,
      "parameters-differ-across-ranks");
}

TEST(ReplicaGroups, OfOneRankEachAreOneGroupOfReplicasThatBeginEqual) {
  auto job = Job(2);
  job.reduce = false;
  const auto alone = [](trace::Trace trace) {
    for (auto& rank : trace.ranks)
      record(rank, -1, trace::Group{"replicas", "", {rank.participant.rank}});
    return trace;
  };
  expect_only(alone(job.run()), "no-gradient-sync", {0, 1}, 0);
  job.equal_start = false;  // each a model of its own
  expect_nothing(alone(job.run()));
}

TEST(ReplicaGroups, HaveTheirOwnFaults) {
  auto apart = last_stage();
  apart.equal_start = false;
  expect_only(side_by_side(first_stage(), apart), "no-initial-broadcast", {1, 3}, -1);
}

TEST(ReplicaGroups, DrawSharesOfTheWholeData) {
  auto same = first_stage();
  same.order = [](int, int pass) { return permutation(101, pass); };
  expect_only(side_by_side(same, last_stage()), "no-sharding", {0, 2}, 0);
}

TEST(ReplicaGroups, AreJudgedWhereAnotherLacksARank) {
  auto apart = last_stage();
  apart.equal_start = false;
  auto trace = side_by_side(first_stage(), apart);
  trace.ranks.erase(trace.ranks.begin() + 2);
  expect_only(trace, "no-initial-broadcast", {1, 3}, -1);
  trace.ranks.pop_back();
  expect_nothing(trace);
}

TEST(ReplicaGroups, OfOneRankHaveNobodyToCompareWith) {
  Job job(2);
  job.reduce = job.equal_start = false;
  auto trace = job.run();
  for (auto [step, engine] : each<trace::Engine>(trace)) engine.kind = "pipeline";
  expect_nothing(trace);
  EXPECT_EQ(state_of(trace, "replicas-diverged"), State::not_applicable);
  EXPECT_THAT(text_of(trace), HasSubstr("Ranks are not compared"));
}

// As layers that two stages share, or that every rank of a tensor-parallel group holds.
TEST(ReplicaGroups, MayReduceSomeGradientsWithOthers) {
  auto trace = side_by_side(first_stage(), last_stage());
  for (auto& rank : trace.ranks)
    for (auto [step, reduced] : each<trace::ReducedGradients>(rank))
      reduced.values[1] = summarize(draw_values(3, 3, step))[1];
  expect_nothing(trace);
}

// By hand, without an engine: other models, and tensors that pass between their ranks.
trace::Trace stages(bool pass_on) {
  auto trace = empty_trace(2);
  for (int r = 0; r < 2; ++r) {
    Job job(1);
    job.layers = r + 1;
    job.has_engine = job.reduce = false;
    auto& rank = trace.ranks[static_cast<std::size_t>(r)];
    rank.events = job.run().ranks[0].events;
    for (std::int64_t step = 0; step < 9; ++step)
      record(rank, step,
             call(step + 1, "0", pass_on ? (r == 0 ? "send" : "recv") : "allreduce", 1 - r, 9));
  }
  return trace;
}

TEST(ReplicaGroups, ThatPassTensorsOnAreStages) {
  expect_nothing(stages(true));
  EXPECT_EQ(state_of(stages(false), "parameters-differ-across-ranks"), State::found);
}

TEST(ReplicaGroups, OfAShardedModelAreComparedByTheirData) {
  Job job(2);
  job.order = [](int, int pass) { return permutation(101, pass); };
  auto trace = without<trace::Model>(without<trace::Parameters>(
      without<trace::LocalGradients>(without<trace::ReducedGradients>(job.run()))));
  for (auto [step, engine] : each<trace::Engine>(trace)) engine.kind = "fully_sharded";
  expect_only(trace, "no-sharding", {0, 1}, 0);
  EXPECT_EQ(state_of(trace, "replicas-diverged"), State::not_applicable);
}

}  // namespace
}  // namespace lockstep::simulated
