// Ways to train that look like a fault in some step, and are none.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "expect.h"
#include "job.h"
#include "sizes.h"
#include "tensors.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

// Two ranks that reduce their gradients in some updates, and average their parameters after some.
trace::Trace train(std::int64_t updates, const std::function<bool(std::int64_t)>& reduces,
                   const std::function<bool(std::int64_t)>& averages) {
  auto trace = empty_trace(2);
  std::vector<Tensors> parameters;
  std::int64_t calls = 0;
  for (auto& rank : trace.ranks) {
    record(rank, -1, trace::Intent{.loss_reduction = "mean"});
    record(rank, -1, trace::Model{{"weight", "bias"}, {{2, 3}, {3}}, {"float", "float"}});
    parameters.push_back(draw_values(7, 0, 0));
    record(rank, -1, trace::Parameters{summarize(parameters.back())});
  }
  const auto all_reduce = [&](std::int64_t step) {
    ++calls;
    for (auto& rank : trace.ranks) record(rank, step, call(calls, "0", "allreduce", -1, 9));
  };
  for (std::int64_t step = 0; step < updates; ++step) {
    std::vector<Tensors> own{draw_values(1, 0, 100 * step), draw_values(1, 1, 100 * step)};
    auto used = own;
    if (reduces(step)) {
      used = {mean(own), mean(own)};
      all_reduce(step);
    }
    for (std::size_t r = 0; r < 2; ++r) add(parameters[r], used[r], -0.1);
    if (averages(step)) {
      parameters = {mean(parameters), mean(parameters)};
      all_reduce(step);
    }
    for (std::size_t r = 0; r < 2; ++r) {
      record(trace.ranks[r], step, trace::LocalGradients{4, summarize(own[r])});
      record(trace.ranks[r], step, trace::ReducedGradients{summarize(used[r])});
      record(trace.ranks[r], step, trace::Update{{0.1}});
      record(trace.ranks[r], step, trace::Parameters{summarize(parameters[r])});
    }
  }
  return trace;
}

TEST(LocalSteps, BetweenUpdatesThatAreReducedAreRightOnceParametersAreAveraged) {
  expect_nothing(train(
      10, [](auto step) { return step < 2 || step >= 8; },
      [](auto step) { return step >= 2 && step < 8 && step % 2 == 1; }));
  expect_nothing(train(
      8, [](auto step) { return step % 2 == 1; }, [](auto step) { return step % 2 == 1; }));
}

TEST(LocalSteps, ThatNothingBringsTogetherAgainAreNamed) {
  const auto trace = train(
      8, [](auto step) { return step != 2; }, [](auto) { return false; });
  EXPECT_EQ(state(trace, "gradient-not-the-mean"), State::found);
  EXPECT_EQ(state(trace, "replicas-diverged"), State::found);
}

// Gradients that nobody reduces before the update, and an all-reduce as large as the parameters in each: between the
// gradients and the parameters after the update, or behind those.
trace::Trace with_all_reduces(bool behind) {
  auto trace = train(
      8, [](auto) { return false; }, [](auto) { return false; });
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> events;
    std::int64_t sequence = 0;
    for (const auto& event : rank.events) {
      events.push_back(event);
      const bool here =
          behind ? event.is<trace::Parameters>() : event.is<trace::ReducedGradients>();
      if (here && event.step >= 0)
        events.push_back({event.time_ns, event.step + (behind ? 1 : 0),
                          call(++sequence, "0", "allreduce", -1, 9)});
    }
    rank.events = std::move(events);
  }
  return trace;
}

TEST(Gradients, ThatAreReducedOnceTheUpdateIsDoneAreNotSynchronised) {
  EXPECT_EQ(state(with_all_reduces(false), "no-gradient-sync"), State::found);
}

TEST(Parameters, MayBeAveragedBehindTheLastLookAtThem) {
  EXPECT_EQ(state(with_all_reduces(true), "no-gradient-sync"), State::not_triggered);
}

// Whose gradients are of one data-parallel engine: an all-reduce in each update.
trace::Trace with_reductions(trace::Trace trace) {
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> events;
    std::int64_t sequence = 0;
    for (const auto& event : rank.events) {
      if (event.is<trace::Update>())
        events.push_back({event.time_ns, event.step, call(++sequence, "0", "allreduce", -1, 9)});
      events.push_back(event);
    }
    rank.events = std::move(events);
  }
  return trace;
}

class Choices : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Choices, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Choices, AThreadWithAGroupOfItsOwnMayBeAnUpdateAhead) {
  auto trace = with_reductions(Job(GetParam()).run());
  for (auto& rank : trace.ranks) {
    const std::int64_t step = rank.participant.rank == 1 ? 11 : 10;
    const auto at = std::find_if(rank.events.begin(), rank.events.end(),
                                 [&](const auto& event) { return event.step == step; });
    rank.events.insert(at, {at->time_ns, step, call(1, "checkpoint", "allgather", -1, 1)});
  }
  expect_nothing(trace);
}

TEST_P(Choices, AnAllReduceLeftOutInOneUpdateIsNamed) {
  auto trace = with_reductions(Job(GetParam()).run());
  auto& events = trace.ranks[1].events;
  const auto left_out = std::find_if(events.begin(), events.end(), [](const trace::Event& event) {
    return event.step == 10 && event.is<trace::Collective>();
  });
  for (auto at = events.erase(left_out); at != events.end(); ++at)
    if (auto* later = at->change<trace::Collective>()) --later->sequence;
  expect_only(trace, "rank-conditional-collective", odd_one_out(GetParam(), 1), 10);
}

// Rank 1 has a batch fewer in each pass, and shadows the other's; nothing tells of passes.
TEST(Joined, RanksAreRightThoughNoPassIsRecorded) {
  auto trace = empty_trace(2);
  for (auto& rank : trace.ranks) {
    const int batches = rank.participant.rank == 0 ? 3 : 2;
    std::int64_t step = 0, sequence = 0;
    record(rank, -1, trace::Model{{"weight", "bias"}, {{2, 3}, {3}}, {"float", "float"}});
    record(rank, -1, trace::Engine{"distributed_data_parallel", 2});
    for (int pass = 0; pass < 3; ++pass) {
      for (int batch = 0; batch < 3; ++batch) {
        if (batch < batches) record(rank, step, trace::Loss{1, 4, 4});
        record(rank, step, call(++sequence, "0", "allreduce", -1, 1));
        record(rank, step, call(++sequence, "0", "allreduce", -1, 9));
        if (batch < batches) record(rank, step++, trace::Update{{0.1}});
      }
      record(rank, step, call(++sequence, "0", "allreduce", -1, 1));
    }
  }
  EXPECT_EQ(state(trace, "rank-conditional-collective"), State::clean);
}

// As on a backend that has broadcast only: what each rank has is sent to all, and all take the mean.
TEST(Parameters, ThatAreAveragedByABroadcastOfEachRankAreRight) {
  Job job(4);
  job.reduce = false;
  job.average_parameters = true;
  job.has_engine = false;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    std::vector<trace::Event> events;
    std::int64_t sequence = 0;
    for (const auto& event : rank.events) {
      if (event.is<trace::Parameters>() && event.step >= 0)
        for (std::int64_t root = 0; root < 4; ++root)
          events.push_back(
              {event.time_ns, event.step, call(++sequence, "0", "broadcast", root, 9)});
      events.push_back(event);
    }
    rank.events = std::move(events);
  }
  EXPECT_EQ(state(trace, "gradient-not-the-mean"), State::clean);
}

// One batch again and again, at rate 0, its gradient rounded to 16 bits: off by the same in each step.
TEST(Gradients, ThatAreRoundedAlikeInEachStepWereNotKept) {
  const auto half = [](double value) {
    int exponent = 0;
    const double fraction = std::frexp(value, &exponent);
    return std::ldexp(std::nearbyint(fraction * 2048) / 2048, exponent);
  };
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto trace = empty_trace(2);
    const std::vector<Tensors> own{draw_values(seed, 0, 5), draw_values(seed, 1, 5)};
    auto rounded = mean(own);
    for (auto& tensor : rounded)
      for (auto& value : tensor) value = half(value);
    for (std::int64_t step = 0; step < 3; ++step)
      for (std::size_t r = 0; r < 2; ++r) {
        record(trace.ranks[r], step, trace::LocalGradients{4, summarize(own[r])});
        record(trace.ranks[r], step, trace::ReducedGradients{summarize(rounded)});
        record(trace.ranks[r], step, trace::Update{{0.0}});
      }
    ASSERT_EQ(state(trace, "gradients-not-zeroed"), State::clean) << "seed " << seed;
  }
}

TEST(Gradients, OfZeroOnAllRanksAreTheMean) {
  auto trace = train(
      6, [](auto) { return true; }, [](auto) { return false; });
  const auto zero = summarize(Tensors{Values(6, 0.0), Values(3, 0.0)});
  for (auto [step, own] : each<trace::LocalGradients>(trace))
    if (step == 2) own.values = zero;
  for (auto [step, used] : each<trace::ReducedGradients>(trace))
    if (step == 2) used.values = zero;
  expect_nothing(trace);
}

// N draws with repeats, dealt to the ranks: in a short pass a rank may well have none.
TEST(Samples, ThatAreDrawnWithRepeatsAreNoShards) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Job job(8);
    job.samples = 64;
    job.passes = 10;
    job.order = [seed](int rank, int pass) {
      std::mt19937_64 dice(1000 * seed + static_cast<std::uint64_t>(pass));
      Ids ids;
      for (int i = 0; i < 64; ++i)
        if (const auto id = static_cast<std::int64_t>(dice() % 64); i % 8 == rank)
          ids.push_back(id);
      return ids;
    };
    ASSERT_EQ(state(job.run(), "shards-overlap"), State::clean) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep::simulated
