#include <gtest/gtest.h>

#include "device_job.h"
#include "expect.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

class Devices : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Count, Devices, kTwoAndThree, testing::PrintToStringParamName());

TEST_P(Devices, WeighedPartsAreRight) {
  const auto trace = DeviceJob(GetParam()).run();
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "unequal-chunk-mean"), State::clean);
  EXPECT_EQ(state(trace, "odd-batch-split"), State::clean);
}

TEST_P(Devices, UnequalPartsThatWeighTheSameAreNamed) {
  DeviceJob job(GetParam());
  job.weighted = false;
  expect_only(job.run(), "unequal-chunk-mean", all_ranks(GetParam()), 1);
}

TEST_P(Devices, EqualPartsCannotShowTheirWeights) {
  DeviceJob job(GetParam());
  job.weighted = false;
  job.batches.assign(4, Ids(static_cast<std::size_t>(GetParam()), 4));
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "unequal-chunk-mean"), State::not_applicable);
}

TEST_P(Devices, FewerPartsThanDevicesAndTheEndIsNamed) {
  DeviceJob job(GetParam());
  job.batches.push_back({2});
  job.dies_in_last = true;
  auto without_part = all_ranks(GetParam());
  without_part.erase(without_part.begin());
  expect_only(job.run(), "odd-batch-split", without_part, 4);
}

TEST_P(Devices, FewerPartsThatWereTrainedOrAnEndElsewhereAreRight) {
  DeviceJob job(GetParam());
  job.dies_in_last = true;  // on a whole split
  expect_nothing(job.run());
  job.dies_in_last = false;
  auto trace = job.run();
  job.batches.push_back({2});
  expect_nothing(job.run());
  record(trace.ranks[0], 4, trace::Split{GetParam(), {1}});
  record(trace.ranks[0], 4, trace::Forward{true});  // it got as far as this
  expect_nothing(trace);
}

TEST_P(Devices, FewerPartsOfAnEvaluationAreRight) {
  const auto trained = DeviceJob(GetParam()).run();
  // Inside a pass that did not end; after one that did; with its forwards alone to tell.
  for (const bool has_pass : {true, false})
    for (const bool ends : {true, false})
      for (const bool has_forward : {true, false}) {
        if (!has_pass && !has_forward) continue;
        auto trace = trained;
        auto& first = trace.ranks[0];
        if (has_pass) record(first, 4, trace::PassBegin{"evaluation", 0});
        for (const auto& sizes : {Ids(static_cast<std::size_t>(GetParam()), 4), Ids{1}}) {
          record(first, 4, trace::Split{GetParam(), sizes});
          if (has_forward) record(first, 4, trace::Forward{false});
        }
        if (has_pass && ends) record(first, 4, trace::PassEnd{"evaluation", 0, 2});
        expect_nothing(trace);
        EXPECT_EQ(state(trace, "odd-batch-split"), State::clean);
      }
}

TEST_P(Devices, FewerPartsAfterAnEvaluationAreStillNamed) {
  auto trace = DeviceJob(GetParam()).run();
  auto& first = trace.ranks[0];
  record(first, 4, trace::PassBegin{"evaluation", 0});
  record(first, 4, trace::Split{GetParam(), {1}});
  record(first, 4, trace::Forward{false});
  record(first, 4, trace::PassEnd{"evaluation", 0, 1});
  record(first, 4, trace::PassBegin{"train", 1});
  record(first, 4, trace::Split{GetParam(), {1}});
  EXPECT_EQ(state(trace, "odd-batch-split"), State::found);
}

TEST_P(Devices, StatisticsOfACopyAreNamed) {
  DeviceJob job(GetParam());
  job.has_buffers = true;
  EXPECT_EQ(state(job.run(), "replica-buffers-lost"), State::clean);
  expect_nothing(job.run());
  job.first_runs_a_copy = true;
  expect_only(job.run(), "replica-buffers-lost", {0}, 0);
}

TEST_P(Devices, FrozenStatisticsAreRight) {
  DeviceJob job(GetParam());
  job.has_buffers = true;
  job.training = false;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "replica-buffers-lost"), State::clean);
}

TEST_P(Devices, BuffersNeedToBeRecorded) {
  DeviceJob job(GetParam());
  EXPECT_EQ(state(job.run(), "replica-buffers-lost"), State::not_triggered);
  job.has_buffers = true;
  job.first_runs_a_copy = true;
  EXPECT_EQ(state(without<trace::Forward>(job.run()), "replica-buffers-lost"),
            State::not_triggered);
}

TEST_P(Devices, GatheringOnTheFirstIsAdvice) {
  DeviceJob job(GetParam());
  job.reduction = DeviceJob::Reduction::gather;
  expect_only(job.run(), "device-zero-bottleneck", {0}, 0, Severity::advice);
}

TEST_P(Devices, ARingFavoursNobody) {
  DeviceJob job(GetParam());
  job.reduction = DeviceJob::Reduction::ring;
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "device-zero-bottleneck"), State::clean);
}

TEST_P(Devices, NothingIsSaidOfRanks) {
  for (const auto* slug :
       {"replica-buffers-lost", "odd-batch-split", "unequal-chunk-mean", "device-zero-bottleneck"})
    EXPECT_EQ(state(Job(GetParam()).run(), slug), State::not_triggered) << slug;
  const auto lacking = without<trace::Split>(DeviceJob(GetParam()).run());
  for (const auto* slug : {"odd-batch-split", "unequal-chunk-mean", "device-zero-bottleneck"})
    EXPECT_EQ(state(lacking, slug), State::not_triggered) << slug;
}

TEST(DevicesOne, HasNothingToShare) {
  for (const auto* slug : {"odd-batch-split", "unequal-chunk-mean", "device-zero-bottleneck"})
    EXPECT_EQ(state(DeviceJob(1).run(), slug), State::not_applicable) << slug;
}

}  // namespace
}  // namespace lockstep::simulated
