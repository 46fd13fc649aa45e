#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

class LossGraph : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LossGraph, kTwoAndThree, testing::PrintToStringParamName());

constexpr std::int64_t kBatch = 4, kFeatures = 6;

// Steps of a job: what is called before the loss, the loss, what backward calls. Each rank's own mean loss
// is 2 + rank / 4.
struct Steps {
  int world_size;
  bool loss_of_all = false;  // of all ranks' samples, the same everywhere
  double loss_times = 1;
  bool from_the_mean = false;  // backward starts from the mean of all ranks' losses
  bool equal_losses = false;
  std::int64_t losses_a_sample = 1;  // tokens, say
  int losses = 1;
  std::vector<trace::Collective> before = {}, after = {};

  double own_mean(int rank) const { return equal_losses ? mean_of_all() : 2 + rank / 4.0; }
  double mean_of_all() const { return 2 + (world_size - 1) / 8.0; }

  trace::Trace run() const {
    auto trace = empty_trace(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      std::int64_t sequence = 0;
      const auto call = [&](std::int64_t step, trace::Collective collective) {
        collective.sequence = ++sequence;
        record(trace.ranks[rank], step, std::move(collective));
      };
      for (std::int64_t step = 0; step < 3; ++step) {
        auto& events = trace.ranks[rank];
        Ids ids;
        for (std::int64_t i = 0; i < kBatch; ++i) ids.push_back(rank + world_size * i);
        record(events, step, trace::Samples{"train", ids});
        for (const auto& collective : before) call(step, collective);
        const std::int64_t count = loss_of_all ? kBatch * world_size : kBatch * losses_a_sample;
        const double mean = loss_of_all || from_the_mean ? mean_of_all() : own_mean(rank);
        const double own = loss_of_all ? mean_of_all() : own_mean(rank);
        for (int l = 0; l < losses; ++l)
          record(events, step,
                 trace::Loss{mean * loss_times, own * static_cast<double>(count), count});
        for (const auto& collective : after) call(step, collective);
        call(step, {.op = "allreduce", .reduce_op = "sum", .dtype = "Float", .sizes = {203}});
        record(events, step, trace::Update{{0.1}});
      }
    }
    return trace;
  }
};

trace::Collective gather() {
  return {.op = "allgather", .dtype = "Float", .sizes = {kBatch * kFeatures}};
}
trace::Collective scalar_sum() {
  return {.op = "allreduce", .reduce_op = "sum", .dtype = "Float", .sizes = {1}};
}

Steps of_reduced_loss(int world_size);

Steps of_gathered(int world_size) {
  return {.world_size = world_size, .loss_of_all = true, .before = {gather()}};
}

TEST_P(LossGraph, OfGatheredValuesWithoutAWayBackIsNamed) {
  expect_only(of_gathered(GetParam()).run(), "gather-loses-graph", all_ranks(GetParam()), 0);
}

// A loss for each sample is gathered, and backward starts from the mean of all of them.
TEST_P(LossGraph, FromGatheredLossesIsNamed) {
  Steps job{.world_size = GetParam(), .from_the_mean = true};
  job.before = {{.op = "allgather", .dtype = "Float", .sizes = {kBatch}}};
  // Whether the gradients are summed, which would make up for it, was not recorded.
  expect_only(job.run(), "gather-loses-graph", all_ranks(GetParam()), 0,
              diagnose::Severity::advice);
  job.from_the_mean = false;  // gathered for the log
  expect_nothing(job.run());
}

TEST_P(LossGraph, FromGatheredLossesWhoseGradientsGoBackIsRight) {
  Steps job{.world_size = GetParam(), .from_the_mean = true};
  job.before = {{.op = "allgather", .dtype = "Float", .sizes = {kBatch}}};
  job.after = {
      {.op = "allreduce", .reduce_op = "sum", .dtype = "Float", .sizes = {kBatch * GetParam()}}};
  expect_nothing(job.run());
}

TEST_P(LossGraph, OfGatheredValuesWhoseGradientsGoBackIsRight) {
  const std::int64_t all = GetParam() * kBatch * kFeatures;
  const trace::Collective ways[] = {
      {.op = "alltoall_base", .dtype = "Float", .sizes = {all}},
      {.op = "_reduce_scatter_base", .reduce_op = "sum", .dtype = "Float", .sizes = {all}},
      {.op = "scatter", .root = 0, .dtype = "Float", .sizes = {kBatch * kFeatures}},
      {.op = "allreduce", .reduce_op = "sum", .dtype = "Float", .sizes = {all}}};
  for (const auto& way : ways) {
    auto job = of_gathered(GetParam());
    job.after = {way};
    expect_nothing(job.run());
    EXPECT_EQ(state(job.run(), "gather-loses-graph"), State::clean) << way.op;
  }
}

TEST_P(LossGraph, OfGatheredValuesTimesTheWorldSizeIsRight) {
  auto job = of_gathered(GetParam());
  job.loss_times = GetParam();
  expect_nothing(job.run());
}

TEST_P(LossGraph, OfOwnSamplesBesideAGatherIsRight) {
  Steps job{.world_size = GetParam(), .before = {gather()}};
  expect_nothing(job.run());
  job.losses_a_sample = GetParam();  // as many as all ranks have samples
  expect_nothing(job.run());
  job.losses_a_sample = 1, job.equal_losses = true;
  expect_nothing(job.run());
}

TEST_P(LossGraph, OfAllSamplesWithoutAGatherIsRight) {
  auto job = of_gathered(GetParam());
  job.before.clear();
  expect_nothing(job.run());
}

TEST_P(LossGraph, InOneStepAloneIsNoRule) {
  for (const auto& job : {of_gathered(GetParam()), of_reduced_loss(GetParam())}) {
    auto trace = job.run();
    for (auto [step, loss] : each<trace::Loss>(trace))
      if (step == 2) loss.backward_value *= 3;
    expect_nothing(trace);
  }
}

Steps of_reduced_loss(int world_size) {
  return {.world_size = world_size, .from_the_mean = true, .before = {scalar_sum()}};
}

TEST_P(LossGraph, FromTheReducedLossIsNamed) {
  expect_only(of_reduced_loss(GetParam()).run(), "loss-all-reduced-in-place", all_ranks(GetParam()),
              0);
}

TEST_P(LossGraph, FromALossReducedWithItsGradientIsRight) {
  auto job = of_reduced_loss(GetParam());
  job.after = {scalar_sum()};
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "loss-all-reduced-in-place"), State::clean);
}

// An average over the ranks leaves no division in the graph.
TEST_P(LossGraph, FromALossThatTheBackendAveragesIsRight) {
  auto job = of_reduced_loss(GetParam());
  job.before.front().reduce_op = "avg";
  expect_nothing(job.run());
}

TEST_P(LossGraph, OfWhichACopyIsReducedIsRight) {
  expect_nothing(Steps{.world_size = GetParam(), .before = {scalar_sum()}}.run());
  expect_nothing(Steps{.world_size = GetParam(), .after = {scalar_sum()}}.run());
}

// A loss that is the same everywhere is its own mean, whatever else is summed.
TEST_P(LossGraph, OfAllSamplesOnAllRanksIsItsOwnMean) {
  auto job = of_gathered(GetParam());
  job.before.push_back(scalar_sum());
  EXPECT_EQ(state(job.run(), "loss-all-reduced-in-place"), State::not_triggered);
}

// Killed in the middle of its first backward, before the gradients went back.
TEST_P(LossGraph, OfAStepThatDidNotEndIsNotJudged) {
  for (const auto& job : {of_gathered(GetParam()), of_reduced_loss(GetParam())}) {
    auto trace = without<trace::Update>(job.run());
    for (auto& rank : trace.ranks)
      std::erase_if(rank.events, [](const auto& event) { return event.step > 0; });
    expect_nothing(trace);
  }
}

TEST_P(LossGraph, NeedsLossesAndCollectives) {
  for (const auto& [job, slug] :
       {std::pair{of_gathered(GetParam()), "gather-loses-graph"},
        std::pair{of_reduced_loss(GetParam()), "loss-all-reduced-in-place"}}) {
    EXPECT_EQ(state(without<trace::Loss>(job.run()), slug), State::not_triggered);
    EXPECT_EQ(state(without<trace::Collective>(job.run()), slug), State::not_triggered);
    auto several = job;
    several.losses = 2;
    EXPECT_EQ(state(several.run(), slug), State::not_triggered);
    auto trace = job.run();
    trace.ranks.back().events.clear();
    EXPECT_EQ(state(trace, slug), State::not_triggered);
  }
  EXPECT_EQ(state(of_gathered(1).run(), "gather-loses-graph"), State::not_applicable);
}

}  // namespace
}  // namespace lockstep::simulated
