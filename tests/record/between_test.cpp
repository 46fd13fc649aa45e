// What goes wrong between two probed steps, and stays, is found: with the steps that it lies between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/diagnose/diagnose.h>

#include "recorded_job.h"

namespace lockstep::test {
namespace {

// The only finding of 48 steps on three ranks in which rank 1 does this.
diagnose::Finding finding_of(const Meddle& meddle) {
  RecordJob job(3);
  train_ddp(
      job.options, 48, [&](int rank) { return std::make_unique<record::Probes>(job.writer(rank)); },
      meddle);
  const auto found = diagnose::diagnose(job.trace()).findings;
  if (found.size() != 1) ADD_FAILURE() << found.size() << " findings";
  return found.empty() ? diagnose::Finding{} : found.front();
}

void expect_between(const diagnose::Finding& finding, std::int64_t after, std::int64_t step) {
  EXPECT_EQ(finding.pitfall, "replicas-diverged") << finding.evidence;
  EXPECT_EQ(finding.ranks, std::vector<int>{1});
  EXPECT_EQ(finding.after, after);
  EXPECT_EQ(finding.step, step);
  EXPECT_THAT(finding.evidence,
              ::testing::HasSubstr("between steps " + std::to_string(after) + " and "));
}

TEST(BetweenProbedSteps, AReplicaThatOneRankChangesIsFound) {
  expect_between(finding_of([](int rank, int step, torch::nn::Module& replica) {
                   const torch::NoGradGuard no_grad;
                   if (rank == 1 && step == 9) replica.parameters()[0].mul_(1.01);
                 }),
                 8, 16);
}

TEST(BetweenProbedSteps, GradientsThatOneRankSpoilsAreFound) {
  expect_between(finding_of([](int rank, int step, torch::nn::Module& replica) {
                   if (rank == 1 && step == 6) replica.parameters()[0].mutable_grad().zero_();
                 }),
                 4, 8);
}

// After the last probed step but before the end.
TEST(BetweenProbedSteps, TheEndIsLookedAtToo) {
  expect_between(finding_of([](int rank, int step, torch::nn::Module& replica) {
                   if (rank == 1 && step == 40) replica.parameters()[0].mutable_grad().zero_();
                 }),
                 32, 47);
}

}  // namespace
}  // namespace lockstep::test
