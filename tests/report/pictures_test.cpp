// What a page shows of a run: its figures, from traces made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/report/pictures.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "../diagnose/hang_job.h"
#include "../diagnose/job.h"

namespace lockstep::report {
namespace {

using simulated::call;
using simulated::HangJob;
using simulated::Ids;
using simulated::Job;
using simulated::record;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

std::vector<std::int64_t> sequences(const Pictures& pictures, int rank) {
  std::vector<std::int64_t> result;
  for (const auto& made : pictures.calls)
    if (made.rank == rank) result.push_back(made.sequence);
  return result;
}

std::vector<std::int64_t> from_to(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> all;
  for (auto i = first; i <= last; ++i) all.push_back(i);
  return all;
}

// A rank's parameters as one tensor of these projections.
void hold(trace::Trace& trace, std::size_t rank, std::int64_t step, std::vector<double> sketch) {
  trace::Summary summary{.hash = 1, .norm = 1, .sketch = std::move(sketch)};
  record(trace.ranks.at(rank), step, trace::Parameters{{summary}});
}

TEST(Divergence, OfAHealthyJobIsNothing) {
  const auto pictures = pictures_of(Job(2).run());
  std::vector<std::int64_t> steps;
  for (const auto& point : pictures.divergence) steps.push_back(point.step);
  EXPECT_THAT(steps, ElementsAre(-1, 0, 1, 2, 3));
  EXPECT_THAT(pictures.divergence, Each(Field(&Pictures::Apart::distance, 0.0)));
}

TEST(Divergence, GrowsWhereGradientsAreNotReduced) {
  Job job(3);
  job.reduce = false;
  const auto pictures = pictures_of(job.run());
  EXPECT_EQ(pictures.tolerance, 1e-6);
  const auto& divergence = pictures.divergence;
  ASSERT_EQ(divergence.size(), 5U);
  EXPECT_LE(divergence[0].distance, pictures.tolerance);
  EXPECT_GT(divergence[1].distance, 0.01);
  EXPECT_GT(divergence[4].distance, divergence[1].distance);
}

TEST(Divergence, IsTheLargestDistanceFromRankZero) {
  auto trace = simulated::empty_trace(3);
  hold(trace, 0, 0, {3, 4, 0, 0});
  hold(trace, 1, 0, {3, 4, 0, 0});
  hold(trace, 2, 0, {3, 4, 0, 1});  // 1 of sqrt(26)
  hold(trace, 0, 7, {3, 4, 0, 0});
  hold(trace, 1, 7, {3, std::numeric_limits<double>::infinity(), 0, 0});
  hold(trace, 2, 7, {3, 4, 0, 0});
  hold(trace, 0, 8, {3, 4, 0, 0});  // which the others do not reach
  auto pictures = pictures_of(trace);
  ASSERT_EQ(pictures.divergence.size(), 2U);
  EXPECT_EQ(pictures.divergence[0].step, 0);
  EXPECT_EQ(pictures.divergence[0].distance, 0.1961);
  EXPECT_EQ(pictures.divergence[1].step, 7);
  EXPECT_TRUE(std::isnan(pictures.divergence[1].distance));
  trace.ranks.erase(trace.ranks.begin() + 1);
  EXPECT_THAT(pictures_of(trace).divergence, IsEmpty()) << "a replica is missing";
}

TEST(Divergence, OfDevicesIsNone) {
  auto trace = simulated::empty_trace(2, "device");
  hold(trace, 0, 0, {3, 4, 0, 0});
  hold(trace, 1, 0, {0, 0, 0, 0});
  EXPECT_THAT(pictures_of(trace).divergence, IsEmpty());
}

TEST(Divergence, HasAHundredPointsAtMost) {
  auto trace = simulated::empty_trace(2);
  for (std::int64_t step = 0; step < 100; ++step)
    for (std::size_t rank = 0; rank < 2; ++rank) hold(trace, rank, step, {1, 0, 0, 0});
  EXPECT_EQ(pictures_of(trace).divergence.size(), 100U);
  for (std::size_t rank = 0; rank < 2; ++rank) hold(trace, rank, 100, {1, 0, 0, 0});
  const auto divergence = pictures_of(trace).divergence;
  EXPECT_EQ(divergence.size(), 51U);
  EXPECT_EQ(divergence[1].step, 2);
}

TEST(Timeline, OfAHealthyJob) {
  const auto pictures =
      pictures_of(HangJob(2).all(call("broadcast", 9)).all(call("allreduce", 9)).play());
  EXPECT_THAT(sequences(pictures, 0), ElementsAre(1, 2));
  EXPECT_THAT(sequences(pictures, 1), ElementsAre(1, 2));
  const auto& second = pictures.calls.at(3);
  EXPECT_EQ(second.operation, "allreduce");
  EXPECT_EQ(second.group, "world");
  EXPECT_EQ(second.entered_s, 0.002) << "since the first call of all";
  EXPECT_EQ(second.left_s, 0.003);
  EXPECT_FALSE(second.failed);
  EXPECT_FALSE(pictures.truncated);
  EXPECT_FALSE(pictures.first_difference);
}

TEST(Timeline, OfAJobThatHangs) {
  HangJob job(3);
  job.give_up = false;
  job.all(call("allreduce", 9));
  for (const int rank : {0, 2}) job.only(rank, call("allreduce", 9));
  auto trace = job.play();
  simulated::end(trace, 0, "deadline");
  simulated::end(trace, 1, "completed");
  simulated::end(trace, 2, "deadline");
  const auto pictures = pictures_of(trace);
  EXPECT_THAT(sequences(pictures, 1), ElementsAre(1));
  EXPECT_EQ(pictures.calls.at(1).sequence, 2);
  EXPECT_FALSE(pictures.calls.at(1).left_s) << "it never left";
  ASSERT_TRUE(pictures.first_difference);
  EXPECT_EQ(pictures.first_difference->group, "world");
  EXPECT_EQ(pictures.first_difference->sequence, 2);
  EXPECT_THAT(pictures.first_difference->ranks, ElementsAre(1));
}

TEST(Timeline, OfAJobThatGivesUp) {
  HangJob job(2);
  job.all(call("allreduce", 9)).only(0, call("allreduce", 9)).only(1, call("broadcast", 9));
  const auto pictures = pictures_of(job.play());
  const auto& given_up = pictures.calls.at(1);
  EXPECT_TRUE(given_up.failed);
  EXPECT_EQ(given_up.left_s, 2.002);
  ASSERT_TRUE(pictures.first_difference);
  EXPECT_EQ(pictures.first_difference->sequence, 2);
  EXPECT_THAT(pictures.first_difference->ranks, ElementsAre(0, 1))
      << "of two, neither is the odd one";
}

// Broadcasts from one root, but for one by one of three ranks, which passes in silence.
trace::Trace job_with_another_root(int calls, int at) {
  HangJob job(3);
  for (int i = 1; i <= calls; ++i)
    for (int rank = 0; rank < 3; ++rank) {
      auto broadcast = call("broadcast", 9);
      broadcast.root = i == at && rank == 1 ? 1 : 0;
      job.only(rank, broadcast);
    }
  return job.play();
}

TEST(Timeline, HasARanksLastFortyCalls) {
  EXPECT_FALSE(pictures_of(job_with_another_root(40, 0)).truncated);
  const auto pictures = pictures_of(job_with_another_root(100, 90));
  EXPECT_TRUE(pictures.truncated);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(sequences(pictures, rank), from_to(61, 100));
  EXPECT_EQ(pictures.calls.front().entered_s, 0.0) << "since the first that is shown";
  EXPECT_EQ(pictures.first_difference->sequence, 90);
  EXPECT_THAT(pictures.first_difference->ranks, ElementsAre(1));
}

TEST(Timeline, HasTheFirstDifferenceWhereThatWasEarlier) {
  const auto middle = pictures_of(job_with_another_root(100, 50));
  EXPECT_EQ(middle.first_difference->sequence, 50);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(sequences(middle, rank), from_to(30, 69));
  EXPECT_EQ(sequences(pictures_of(job_with_another_root(100, 9)), 0), from_to(1, 40));
}

TEST(Owners, AreWhoDrewWhichSamples) {
  const auto pictures = pictures_of(Job(2).run());
  ASSERT_EQ(pictures.passes.size(), 2U) << "of three";
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto& pass = pictures.passes[static_cast<std::size_t>(epoch)];
    EXPECT_EQ(pass.epoch, epoch);
    EXPECT_EQ(pass.samples, 101);
    EXPECT_EQ(pass.every, 1);
    EXPECT_THAT(pass.drawn, ElementsAre(simulated::deal({101, 2}, 0, epoch),
                                        simulated::deal({101, 2}, 1, epoch)));
  }
}

// Rank 1 of 3 dies in its first pass, and rank 2 left no trace.
TEST(Owners, OfAPassThatNotAllEnded) {
  auto trace = simulated::empty_trace(3);
  trace.ranks.pop_back();
  auto& survivor = trace.ranks[0];
  record(survivor, 0, trace::PassBegin{"train", 5});
  record(survivor, 0, trace::Samples{"train", {4, 2}});
  record(survivor, 1, trace::Samples{"train", {0}});
  record(survivor, 1, trace::PassEnd{"train", 5, 2});
  record(survivor, 1, trace::PassBegin{"train", 6});
  record(survivor, 1, trace::Samples{"train", {1}});
  record(trace.ranks[1], 0, trace::PassBegin{"train", 5});
  record(trace.ranks[1], 0, trace::Samples{"train", {3, 2}});
  const auto pictures = pictures_of(trace);
  ASSERT_EQ(pictures.passes.size(), 2U);
  EXPECT_EQ(pictures.passes[0].epoch, 5);
  EXPECT_EQ(pictures.passes[0].samples, 0) << "nobody recorded it";
  EXPECT_THAT(pictures.passes[0].drawn, ElementsAre(Ids{4, 2, 0}, Ids{3, 2}, Ids{}));
  EXPECT_EQ(pictures.passes[1].epoch, 6);
  EXPECT_THAT(pictures.passes[1].drawn, ElementsAre(Ids{1}, Ids{}, Ids{}));
}

// 2000 ids, far apart and dealt in turn; both ranks draw the first of them, the same in both passes.
TEST(Owners, OfManySamplesAreSomeOfEachRank) {
  Job job(2);
  job.samples = 2000;
  job.order = [](int rank, int) {
    Ids ids;
    if (rank == 1) ids.push_back(0);
    for (std::int64_t i = rank; i < 2000; i += 2) ids.push_back(1000 * i);
    return ids;
  };
  const auto pictures = pictures_of(job.run());
  std::size_t count = 0;
  for (const auto& pass : pictures.passes) {
    EXPECT_EQ(pass.every, 9) << "4002 of 512 is 8, and every 8th of them are all of one rank";
    const auto& [first, second] = std::tie(pass.drawn[0], pass.drawn[1]);
    EXPECT_EQ(first.at(1), 18000);
    EXPECT_EQ(second.at(0), 0) << "what two ranks drew shows on both";
    EXPECT_EQ(second.at(1), 9000);
    EXPECT_NEAR(static_cast<double>(first.size()), static_cast<double>(second.size()), 2);
    count += first.size() + second.size();
  }
  EXPECT_LE(count, Pictures::kMostIds);
  EXPECT_GT(count, 400U);
  EXPECT_EQ(pictures.passes[0].drawn, pictures.passes[1].drawn);
}

TEST(Owners, OfOneSampleDrawnForEver) {
  Job job(2);
  job.order = [](int rank, int) { return Ids(600, rank); };
  const auto pictures = pictures_of(job.run());
  EXPECT_EQ(pictures.passes[0].every, 3);
  EXPECT_THAT(pictures.passes[0].drawn[1], IsEmpty());
}

TEST(Pictures, OfAnEmptyTraceAreEmpty) {
  const auto pictures = pictures_of(simulated::empty_trace(2));
  EXPECT_THAT(pictures.divergence, IsEmpty());
  EXPECT_THAT(pictures.calls, IsEmpty());
  EXPECT_THAT(pictures.passes, IsEmpty());
  EXPECT_FALSE(pictures.first_difference);
}

}  // namespace
}  // namespace lockstep::report
