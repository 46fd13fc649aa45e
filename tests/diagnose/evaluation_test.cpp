#include <gtest/gtest.h>

#include <algorithm>

#include "expect.h"
#include "job.h"
#include "sizes.h"

namespace lockstep::simulated {
namespace {

using diagnose::State;

constexpr std::int64_t kSamples = 101;

class Evaluation : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Evaluation, kTwoToFour, testing::PrintToStringParamName());

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

// One evaluation pass a list of ids, dealt to the ranks in turn.
trace::Trace looks(int world_size, const std::vector<Ids>& looks) {
  Job job(world_size);
  job.passes = static_cast<int>(looks.size());
  job.evaluation_order = [=](int rank, int pass) {
    const auto& all = looks[static_cast<std::size_t>(pass)];
    Ids ids;
    for (auto i = static_cast<std::size_t>(rank); i < all.size(); i += world_size)
      ids.push_back(all[i]);
    return ids;
  };
  job.evaluation_count = [=](int, int pass) {
    return static_cast<double>(looks[static_cast<std::size_t>(pass)].size());
  };
  return job.run();
}

Ids between(std::int64_t first, std::int64_t last) {
  Ids ids;
  for (auto id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

TEST_P(Evaluation, OfAnotherDataSetIsRight) {
  const int w = GetParam();
  const auto validation = between(0, 50);
  // At the end: larger; as large, with ids of its own; as large, with some of the same ids.
  for (const auto& test : {between(1'000, 1'090), between(1'000, 1'050), between(20, 70)})
    expect_nothing(looks(w, {validation, validation, test}));
  expect_nothing(looks(w, {between(0, 60), between(1'000, 1'060)}));
  EXPECT_EQ(state(looks(w, {between(0, 60), between(1'000, 1'060)}), "shuffled-evaluation"),
            State::not_triggered);
}

TEST_P(Evaluation, OfAFewBatchesAndOfAllAtTheEndIsRight) {
  const auto trace = looks(GetParam(), {between(0, 20), between(0, 20), between(0, 101)});
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "shuffled-evaluation"), State::clean);
}

TEST_P(Evaluation, OfOneFoldAfterAnotherIsRight) {
  expect_nothing(looks(GetParam(), {between(0, 50), between(50, 100)}));
  expect_nothing(looks(GetParam(), {between(0, 20), between(20, 40), between(40, 60),
                                    between(60, 80), between(80, 100)}));
}

TEST_P(Evaluation, OfAFewOfManyIsNamedWhetherTheyOverlapOrNot) {
  const int w = GetParam();
  expect_only(looks(w, {{1, 50, 33, 17, 5, 64, 28, 99}, {2, 51, 34, 18, 6, 65, 29, 100}}),
              "shuffled-evaluation", all_ranks(w), -2);
  expect_only(looks(w, {{1, 50, 33, 17, 5, 64, 28, 99}, {2, 51, 34, 17, 6, 65, 28, 100}}),
              "shuffled-evaluation", all_ranks(w), -2);
}

// A metric of a pass that was broken off belongs to no finished one.
TEST_P(Evaluation, BrokenOffKeepsItsMetricToItself) {
  auto trace = looks(GetParam(), {between(0, 52), between(0, 51), between(0, 51)});
  for (auto& rank : trace.ranks)
    for (auto event = rank.events.begin(); event != rank.events.end(); ++event)
      if (const auto* end = event->as<trace::PassEnd>(); end && end->phase == "evaluation") {
        rank.events.erase(event);
        break;
      }
  expect_nothing(trace);
  EXPECT_EQ(state(trace, "evaluation-padding"), State::clean);
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

TEST_P(Evaluation, OfSamplesThatWereNotRecordedIsNotKnown) {
  Job job(GetParam());
  job.evaluation_order = [](int, int) { return Ids(); };
  job.evaluation_count = [](int, int) { return 1.0; };
  expect_nothing(job.run());
  for (const auto* slug : {"evaluation-padding", "shuffled-evaluation"})
    EXPECT_EQ(state(job.run(), slug), State::not_triggered) << slug;
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
}  // namespace lockstep::simulated
