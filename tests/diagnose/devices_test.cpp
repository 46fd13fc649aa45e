#include <gtest/gtest.h>

#include "expect.h"
#include "job.h"
#include "sizes.h"
#include "tensors.h"

namespace lockstep::simulated {
namespace {

using diagnose::Severity;
using diagnose::State;

// One process that drives several devices, simulated: DataParallel's steps on vectors of a few numbers.
struct DeviceJob {
  int devices = 2;
  std::vector<Ids> batches;   // per step, the sizes of the parts; fewer than devices are allowed
  bool weighted = true;       // parts weigh by their samples
  bool dies_in_last = false;  // no update in the last step

  bool has_buffers = false;
  bool training = true;
  bool first_runs_a_copy = false;  // whose buffers are dropped

  enum class Reduction { unseen, gather, ring } reduction = Reduction::unseen;

  explicit DeviceJob(int count);  // four steps; parts of 4 samples, the last one of 2 in odd steps
  trace::Trace run() const;
};

constexpr std::int64_t kBytes = 1'000;  // of the parameters, and of their gradients

// Running statistics after `steps`, and a constant that never moves.
trace::Buffers buffers_after(std::int64_t steps) {
  return {{"running_mean", "scale"},
          {summarize(Values{0.5 * static_cast<double>(steps), 1}), summarize(Values{3})}};
}

void transfer(trace::Trace& trace, std::int64_t step, int from, int to, std::int64_t bytes,
              const char* what) {
  record(trace.ranks[to], step, trace::Transfer{from, to, bytes, what});
}

void move_gradients(trace::Trace& trace, std::int64_t step, DeviceJob::Reduction how) {
  const int count = trace.world_size;
  if (how == DeviceJob::Reduction::gather)
    for (int d = 1; d < count; ++d) {
      transfer(trace, step, d, 0, kBytes, "gradients");
      transfer(trace, step, 0, d, kBytes, "parameters");
    }
  if (how == DeviceJob::Reduction::ring)
    for (int d = 0; d < count; ++d)
      for (int hop = 0; hop < 2 * (count - 1); ++hop)
        transfer(trace, step, d, (d + 1) % count, kBytes / count, "gradients");
}

DeviceJob::DeviceJob(int count) : devices(count) {
  for (int step = 0; step < 4; ++step) {
    Ids sizes(static_cast<std::size_t>(count), 4);
    if (step % 2 == 1) sizes.back() = 2;
    batches.push_back(sizes);
  }
}

trace::Trace DeviceJob::run() const {
  auto trace = empty_trace(devices, "device");
  for (auto& device : trace.ranks) {
    record(device, -1, trace::Parameters{summarize(draw_values(7, 0, 0))});
    if (has_buffers) record(device, -1, buffers_after(0));
  }
  std::int64_t kept = 0;  // steps the first device's own statistics saw
  for (std::size_t s = 0; s < batches.size(); ++s) {
    const auto step = static_cast<std::int64_t>(s);
    const auto& sizes = batches[s];
    record(trace.ranks[0], step, trace::Split{devices, sizes});
    if (dies_in_last && s + 1 == batches.size()) break;
    std::int64_t samples = 0;
    for (const auto size : sizes) samples += size;
    std::vector<Values> reduced{Values(6, 0.0), Values(3, 0.0)};
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      record(trace.ranks[d], step, trace::Forward{training});
      const auto local = draw_values(1, static_cast<std::int64_t>(d), step);
      add(reduced, local,
          weighted ? static_cast<double>(sizes[d]) / static_cast<double>(samples)
                   : 1.0 / static_cast<double>(sizes.size()));
      record(trace.ranks[d], step, trace::LocalGradients{sizes[d], summarize(local)});
    }
    move_gradients(trace, step, reduction);
    const auto before = kept;
    if (training && !first_runs_a_copy) ++kept;
    for (std::size_t d = 0; d < trace.ranks.size(); ++d) {
      auto& device = trace.ranks[d];
      // Other devices' gradients stay their own.
      if (d < sizes.size())
        record(device, step,
               trace::ReducedGradients{
                   d == 0 ? summarize(reduced)
                          : summarize(draw_values(1, static_cast<std::int64_t>(d), step))});
      record(device, step, trace::Update{{0.1}});
      // Copies are as the model was before the step; theirs are not the parameters that train.
      record(device, step, trace::Parameters{summarize(draw_values(7, d == 0 ? 0 : 1, step))});
      if (has_buffers)
        record(device, step,
               d == 0 ? buffers_after(kept) : buffers_after(training ? before + 1 : before));
    }
  }
  return trace;
}

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
