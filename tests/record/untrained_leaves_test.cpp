// Parameters that losses lead to, and that nobody trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/record/untrained_leaves.h>
#include <torch/torch.h>

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using StepNumbers = std::vector<std::int64_t>;

at::Tensor parameter() {
  return torch::ones({2, 3}, torch::requires_grad());
}

// What is told at step 60, where others are looked at in steps 0 to 4, 8, 16 and 32, and this one in `steps`.
trace::Untrained told(const at::Tensor& leaf, const StepNumbers& steps, bool is_known = false) {
  record::UntrainedLeaves leaves;
  for (const std::int64_t step : {0, 1, 2, 3, 4, 8, 16, 32}) {
    const bool leads = std::find(steps.begin(), steps.end(), step) != steps.end();
    leaves.look(step, leads ? std::vector{leaf} : std::vector<at::Tensor>{});
  }
  return leaves.unchanged(60, [&](const at::Tensor&) { return is_known; });
}

TEST(UntrainedLeaves, InFourStepsAreTold) {
  const auto [leaves] = told(parameter(), {1, 2, 3, 4});
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_THAT(leaves[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(leaves[0].step, 1);
  EXPECT_THAT(told(parameter(), {1, 2, 3}).leaves, IsEmpty());
  EXPECT_THAT(told(parameter(), {1, 2, 3, 4}, true).leaves, IsEmpty());
}

TEST(UntrainedLeaves, ThatWereThawedLateAreTold) {
  EXPECT_THAT(told(parameter(), {32}).leaves, ElementsAre(Field(&trace::UntrainedLeaf::step, 32)));
  EXPECT_THAT(told(parameter(), {16}).leaves, IsEmpty());  // no loss leads to it any longer
}

TEST(UntrainedLeaves, ThatChangeAreTrained) {
  const auto leaf = parameter();
  record::UntrainedLeaves leaves;
  leaves.look(32, {leaf});
  EXPECT_THAT(leaves.unchanged(39, [](const at::Tensor&) { return false; }).leaves, IsEmpty());
  EXPECT_THAT(leaves.unchanged(40, [](const at::Tensor&) { return false; }).leaves,
              ElementsAre(Field(&trace::UntrainedLeaf::shape, ElementsAre(2, 3))));
  leaf.detach().add_(1);
  EXPECT_THAT(leaves.unchanged(40, [](const at::Tensor&) { return false; }).leaves, IsEmpty());
}

}  // namespace
}  // namespace lockstep::test
