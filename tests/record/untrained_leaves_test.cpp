// Parameters that losses lead to, and that nobody trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/record/untrained_leaves.h>
#include <torch/torch.h>

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using StepNumbers = std::vector<std::int64_t>;

at::Tensor parameter() {
  return torch::ones({2, 3}, torch::requires_grad());
}

// What is told at step 60, where others are looked at in steps 0 to 4, 8, 16 and 32, and this one in `steps`.
trace::Configuration told(const at::Tensor& leaf, const StepNumbers& steps, bool is_known = false) {
  record::UntrainedLeaves leaves;
  for (const std::int64_t step : {0, 1, 2, 3, 4, 8, 16, 32}) {
    const bool leads = std::find(steps.begin(), steps.end(), step) != steps.end();
    leaves.look(step, leads ? std::vector{leaf} : std::vector<at::Tensor>{});
  }
  return leaves.unchanged(60, [&](const at::Tensor&) { return is_known; });
}

TEST(UntrainedLeaves, InFourStepsAreTold) {
  const auto configuration = told(parameter(), {1, 2, 3, 4});
  EXPECT_EQ(configuration.of, "untrained");
  EXPECT_THAT(configuration.keys, ElementsAre("[2, 3]"));
  EXPECT_THAT(configuration.values, ElementsAre("1"));
  EXPECT_THAT(told(parameter(), {1, 2, 3}).keys, IsEmpty());
  EXPECT_THAT(told(parameter(), {1, 2, 3, 4}, true).keys, IsEmpty());
}

TEST(UntrainedLeaves, ThatWereThawedLateAreTold) {
  EXPECT_THAT(told(parameter(), {32}).values, ElementsAre("32"));
  EXPECT_THAT(told(parameter(), {16}).keys, IsEmpty());  // no loss leads to it any longer
}

TEST(UntrainedLeaves, ThatChangeAreTrained) {
  const auto leaf = parameter();
  record::UntrainedLeaves leaves;
  leaves.look(32, {leaf});
  EXPECT_THAT(leaves.unchanged(39, [](const at::Tensor&) { return false; }).keys, IsEmpty());
  EXPECT_THAT(leaves.unchanged(40, [](const at::Tensor&) { return false; }).keys,
              ElementsAre("[2, 3]"));
  leaf.detach().add_(1);
  EXPECT_THAT(leaves.unchanged(40, [](const at::Tensor&) { return false; }).keys, IsEmpty());
}

}  // namespace
}  // namespace lockstep::test
