// What a loss's graph tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/record/loss_graph.h>
#include <torch/torch.h>

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::vector<double> divisors_of(const at::Tensor& loss) {
  return record::look_at_graph(loss).divisors;
}

at::Tensor numbers(std::int64_t rows, std::int64_t columns = 4) {
  return torch::ones({rows, columns}, torch::requires_grad());
}

TEST(LossGraph, DivisorsOfAMeanAreItsNumbers) {
  EXPECT_THAT(divisors_of(numbers(3).mean()), ElementsAre(12));
  EXPECT_THAT(divisors_of(numbers(3).sum()), ElementsAre(1));
  EXPECT_THAT(divisors_of(numbers(3).sum() / 5), ElementsAre(5));
  EXPECT_THAT(divisors_of(numbers(3).sum() / torch::tensor({7.0})[0]), ElementsAre(7));
  EXPECT_THAT(divisors_of(numbers(3).mean() / 2 * 8), ElementsAre(3));
  EXPECT_THAT(divisors_of(0.5 * -numbers(3).mean()), ElementsAre(24));
}

TEST(LossGraph, DivisorsOfTorchsLossesAreWhatTheyDivideBy) {
  const auto targets = torch::tensor({1, -100, 2}, torch::kLong);
  EXPECT_THAT(divisors_of(torch::cross_entropy_loss(numbers(3), targets)), ElementsAre(2));
  const auto weights = torch::tensor({1.0f, 0.5f, 0.25f, 1.0f});
  EXPECT_THAT(divisors_of(torch::cross_entropy_loss(numbers(3), targets, weights)),
              ElementsAre(0.75));
  EXPECT_THAT(divisors_of(torch::cross_entropy_loss(numbers(3), targets, {}, at::Reduction::Sum)),
              ElementsAre(1));
  const auto zeros = torch::zeros({3, 4});
  EXPECT_THAT(divisors_of(torch::mse_loss(numbers(3), zeros)), ElementsAre(12));
  EXPECT_THAT(divisors_of(torch::mse_loss(numbers(3), zeros, at::Reduction::Sum) / 3),
              ElementsAre(3));
  EXPECT_THAT(divisors_of(torch::binary_cross_entropy_with_logits(numbers(3), zeros)),
              ElementsAre(12));
  EXPECT_THAT(divisors_of(torch::smooth_l1_loss(numbers(3), zeros)), ElementsAre(12));
  EXPECT_THAT(divisors_of(torch::huber_loss(numbers(3), zeros)), ElementsAre(12));
}

TEST(LossGraph, EachTermHasADivisor) {
  EXPECT_THAT(divisors_of(numbers(3).mean() + 0.5 * numbers(2).mean() - numbers(1).sum() / 3),
              ElementsAre(12, 16, 3));
  EXPECT_THAT(divisors_of((numbers(3).mean() + numbers(2).sum()) / 2 + 1), ElementsAre(24, 2));
}

// A product of two losses has no divisor; what leads to it counts.
TEST(LossGraph, WhatHasAGradientItselfIsNoDivisor) {
  EXPECT_THAT(divisors_of(numbers(3).mean() / numbers(2).sum() / 2), ElementsAre(2));
  EXPECT_THAT(divisors_of(torch::ones({}, torch::requires_grad())), IsEmpty());
}

TEST(LossGraph, ThatIsGoneTellsNothing) {
  const auto loss = numbers(3).sum() / torch::tensor({7.0});
  loss.backward();
  EXPECT_THAT(divisors_of(loss), IsEmpty());
}

TEST(LossGraph, OfVeryManyTermsTellsNothing) {
  auto loss = numbers(1).mean();
  for (int i = 0; i < 16; ++i) loss = loss + numbers(1).mean();
  EXPECT_THAT(divisors_of(loss), IsEmpty());
}

TEST(LossGraph, HasTheTargetsAndSettingsOfTorchsLosses) {
  const auto targets = torch::tensor({1, -1, 2}, torch::kLong);
  const auto weights = torch::tensor({1.0f, 0.5f, 0.25f, 1.0f});
  auto graph = record::look_at_graph(torch::cross_entropy_loss(
      numbers(3), targets, weights, at::Reduction::Mean, /*ignore_index=*/-1));
  ASSERT_EQ(graph.targets.size(), 1u);
  EXPECT_TRUE(graph.targets[0].equal(targets));
  EXPECT_THAT(graph.settings, UnorderedElementsAre(Pair("ignore_index of term 1", "-1"),
                                                   Pair("weight of term 1", "1, 0.5, 0.25, 1")));

  // Below a mask, and in the second term.
  const auto mask = torch::ones({3, 4}), zeros = torch::zeros({3, 4});
  const auto each = torch::binary_cross_entropy_with_logits(
      numbers(3), zeros, {}, torch::full({1}, 2.5), at::Reduction::None);
  graph = record::look_at_graph(numbers(2).mean() + (mask * each).sum(1).mean());
  ASSERT_EQ(graph.targets.size(), 1u);
  EXPECT_TRUE(graph.targets[0].equal(zeros));
  EXPECT_THAT(graph.settings, ElementsAre(Pair("pos_weight of term 2", "2.5")));

  graph = record::look_at_graph(torch::huber_loss(numbers(3), zeros, at::Reduction::Sum, 0.5));
  EXPECT_THAT(graph.settings, ElementsAre(Pair("delta of term 1", "0.5")));
  const auto many = record::look_at_graph(torch::cross_entropy_loss(
      numbers(3, 20), torch::zeros({3}, torch::kLong), torch::ones({20})));
  EXPECT_EQ(many.settings.at("weight of term 1"),
            "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, and 4 more");
}

TEST(LossGraph, LeadsToItsLeavesAndToWhatTheFirstOperationsWereGiven) {
  const auto weight = torch::ones({4, 2}, torch::requires_grad()),
             scale = torch::ones({1}, torch::requires_grad()), rows = torch::rand({3, 4});
  const auto loss = (rows.mm(weight) * scale).relu().mm(torch::ones({2, 2})).sum() * scale;
  auto ends = record::ends_of(loss.sum(), 64);
  ASSERT_EQ(ends.leaves.size(), 2u);
  EXPECT_TRUE(ends.leaves[0].is_same(weight) || ends.leaves[1].is_same(weight));
  EXPECT_TRUE(ends.leaves[0].is_same(scale) || ends.leaves[1].is_same(scale));
  ASSERT_EQ(ends.inputs.size(), 1u);
  EXPECT_TRUE(ends.inputs[0].equal(rows));

  const auto table = torch::ones({5, 4}, torch::requires_grad()),
             bias = torch::ones({2}, torch::requires_grad());
  const auto places = torch::tensor({3, 0, 3});
  ends = record::ends_of(
      (torch::embedding(table, places).sum() + torch::linear(rows, weight.t(), bias).sum()), 64);
  ASSERT_EQ(ends.inputs.size(), 2u);
  EXPECT_TRUE(ends.inputs[0].equal(places) || ends.inputs[1].equal(places));
  EXPECT_TRUE(ends.inputs[0].equal(rows) || ends.inputs[1].equal(rows));
  EXPECT_THAT(record::ends_of(torch::ones({}), 64).leaves, IsEmpty());
}

}  // namespace
}  // namespace lockstep::test
