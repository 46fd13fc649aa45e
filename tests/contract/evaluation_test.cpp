#include <gtest/gtest.h>

#include <algorithm>

#include "expect.h"
#include "job.h"

namespace lockstep::contract {
namespace {

using diagnose::State;

constexpr std::int64_t kSamples = 101;

class Evaluation : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Evaluation, testing::Values(2, 3, 4, 8),
                         testing::PrintToStringParamName());

double padded(int world_size) {
  return static_cast<double>((kSamples + world_size - 1) / world_size * world_size);
}

Job with_padded_sampler(int world_size) {
  Job job(world_size);
  job.evaluation_order = [world_size](int rank, int) {
    return deal({kSamples, world_size, false}, rank, 0);
  };
  return job;
}

TEST_P(Evaluation, ThatCountsRepeatsIsNamed) {
  auto job = with_padded_sampler(GetParam());
  job.evaluation_count = [w = GetParam()](int, int) { return padded(w); };
  auto trace = job.run();
  expect_only(trace, "evaluation-padding", all_ranks(GetParam()), -2);
  EXPECT_EQ(diagnose::diagnose(trace).findings.at(0).evidence,
            "an evaluation metric counts " + std::to_string(static_cast<int>(padded(GetParam()))) +
                " samples, and 101 different ones were drawn");
}

TEST_P(Evaluation, ThatCountsRepeatsOnEachRankForItselfIsNamed) {
  auto job = with_padded_sampler(GetParam());
  job.evaluation_count = [w = GetParam()](int, int) { return padded(w) / w; };
  expect_only(job.run(), "evaluation-padding", all_ranks(GetParam()), -2);
}

TEST_P(Evaluation, ThatDropsRepeatsWhenCountingIsRight) {
  expect_nothing(with_padded_sampler(GetParam()).run());
  EXPECT_EQ(state(with_padded_sampler(GetParam()).run(), "evaluation-padding"), State::clean);
}

TEST_P(Evaluation, OfEachRanksOwnPartIsRight) {
  Job job(GetParam());
  job.evaluation_count = [w = GetParam()](int rank, int) {
    return static_cast<double>((kSamples - rank + w - 1) / w);
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "evaluation-padding"), State::clean);
}

TEST_P(Evaluation, OfEverythingOnAllRanksIsRight) {
  Job job(GetParam());
  job.evaluation_order = [](int, int) { return deal({kSamples, 1, false}, 0, 0); };
  expect_nothing(job.run());
  job.evaluation_count = [w = GetParam()](int, int) { return static_cast<double>(kSamples * w); };
  expect_nothing(job.run());
}

TEST_P(Evaluation, OfDataThatDivideNeedsNoPadding) {
  Job job(GetParam());
  job.samples = 96;
  EXPECT_EQ(state(job.run(), "evaluation-padding"), State::not_applicable);
}

TEST_P(Evaluation, OfOtherSamplesIsNamed) {
  Job job(GetParam());
  job.evaluation_order = [w = GetParam()](int rank, int pass) {
    auto ids = deal({kSamples, w}, rank, pass);
    ids.resize(5);
    return ids;
  };
  job.evaluation_count = [w = GetParam()](int, int) { return 5.0 * w; };
  auto trace = job.run();
  expect_only(trace, "shuffled-evaluation", all_ranks(GetParam()), -2);
}

TEST_P(Evaluation, OfTheSameSamplesInAnotherOrderIsRight) {
  Job job(GetParam());
  job.evaluation_order = [w = GetParam()](int rank, int pass) {
    Ids ids;
    for (const auto id : permutation(kSamples, pass))
      if (id % w == rank) ids.push_back(id);
    return ids;
  };
  expect_nothing(job.run());
  EXPECT_EQ(state(job.run(), "shuffled-evaluation"), State::clean);
}

TEST_P(Evaluation, NeedsPassesAndMetrics) {
  auto job = with_padded_sampler(GetParam());
  job.evaluation_count = [w = GetParam()](int, int) { return padded(w); };
  EXPECT_EQ(state(without<trace::Metric>(job.run()), "evaluation-padding"), State::not_triggered);
  job.passes = 1;
  EXPECT_EQ(state(job.run(), "shuffled-evaluation"), State::not_triggered);
  EXPECT_EQ(state(without<trace::PassEnd>(job.run()), "evaluation-padding"), State::not_triggered);
}

}  // namespace
}  // namespace lockstep::contract
