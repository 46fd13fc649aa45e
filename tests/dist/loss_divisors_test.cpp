// What a loss was divided by, as its graph tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/record/loss_divisors.h>
#include <torch/torch.h>

namespace lockstep::test {
namespace {

using record::divisors_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

at::Tensor numbers(std::int64_t rows, std::int64_t columns = 4) {
  return torch::ones({rows, columns}, torch::requires_grad());
}

TEST(LossDivisors, OfAMeanAreItsNumbers) {
  EXPECT_THAT(divisors_of(numbers(3).mean()), ElementsAre(12));
  EXPECT_THAT(divisors_of(numbers(3).sum()), ElementsAre(1));
  EXPECT_THAT(divisors_of(numbers(3).sum() / 5), ElementsAre(5));
  EXPECT_THAT(divisors_of(numbers(3).sum() / torch::tensor({7.0})[0]), ElementsAre(7));
  EXPECT_THAT(divisors_of(numbers(3).mean() / 2 * 8), ElementsAre(3));
  EXPECT_THAT(divisors_of(0.5 * -numbers(3).mean()), ElementsAre(24));
}

TEST(LossDivisors, OfTorchsLossesAreWhatTheyDivideBy) {
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

TEST(LossDivisors, EachTermHasItsOwn) {
  EXPECT_THAT(divisors_of(numbers(3).mean() + 0.5 * numbers(2).mean() - numbers(1).sum() / 3),
              ElementsAre(12, 16, 3));
  EXPECT_THAT(divisors_of((numbers(3).mean() + numbers(2).sum()) / 2 + 1), ElementsAre(24, 2));
}

// A product of two losses has no divisor; what leads to it counts.
TEST(LossDivisors, WhatHasAGradientItselfIsNone) {
  EXPECT_THAT(divisors_of(numbers(3).mean() / numbers(2).sum() / 2), ElementsAre(2));
  EXPECT_THAT(divisors_of(torch::ones({}, torch::requires_grad())), IsEmpty());
}

TEST(LossDivisors, OfAGraphThatIsGoneAreNotKnown) {
  const auto loss = numbers(3).sum() / torch::tensor({7.0});
  loss.backward();
  EXPECT_THAT(divisors_of(loss), IsEmpty());
}

TEST(LossDivisors, OfVeryManyTermsAreNotKnown) {
  auto loss = numbers(1).mean();
  for (int i = 0; i < 16; ++i) loss = loss + numbers(1).mean();
  EXPECT_THAT(divisors_of(loss), IsEmpty());
}

}  // namespace
}  // namespace lockstep::test
