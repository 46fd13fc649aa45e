// GradScaler's decision over ranks, and its misuse; its numbers are compared with Python's in parity.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/grad_scaler.h>

#include <limits>

#include "../support/thread_ranks.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One parameter of ones, whose gradient is what it is told.
struct Small {
  at::Tensor parameter = torch::ones({3}).set_requires_grad(true);
  torch::optim::SGD optimizer{{parameter}, 1.0};

  void backward(GradScaler& scaler, float gradient) {
    optimizer.zero_grad();
    scaler.scale((parameter * gradient).sum()).backward();
  }
  bool step(GradScaler& scaler, float gradient) {
    backward(scaler, gradient);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }
};

class GradScalerOnRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GradScalerOnRanks, ::testing::Values(1, 2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(GradScalerOnRanks, WithTheirGroupAllLeaveOutWhatOneHasFound) {
  test::run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const bool last = group->getRank() == group->getSize() - 1;
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      GradScaler scaler({.init_scale = 8}, group);
      Small small;
      EXPECT_FALSE(small.step(scaler, last ? bad : 1));
      EXPECT_TRUE(small.parameter.equal(torch::ones({3})));
      EXPECT_EQ(scaler.get_scale(), 4) << "halved on every rank";
      EXPECT_TRUE(small.step(scaler, 1));
      EXPECT_TRUE(small.parameter.equal(torch::zeros({3})));
      EXPECT_EQ(scaler.state_dict().at("_growth_tracker").as_int(), 1);
    }
  });
}

TEST_P(GradScalerOnRanks, WithoutItEachDecidesForItself) {
  test::run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const bool last = group->getRank() == group->getSize() - 1;
    GradScaler scaler({.init_scale = 8});
    Small small;
    EXPECT_EQ(small.step(scaler, last ? kInfinity : 1), !last);
    EXPECT_EQ(scaler.get_scale(), last ? 4 : 8);
  });
}

// A rank without a gradient is told so after it has met the others, who go on.
TEST(GradScalerOnTwoRanks, ARankWithoutGradientsMakesNobodyWait) {
  test::run_thread_ranks(2, [](ProcessGroupPtr group) {
    GradScaler scaler({.init_scale = 8}, group);
    Small small;
    small.backward(scaler, 1);
    if (group->getRank() == 0) {
      EXPECT_TRUE(scaler.step(small.optimizer));
    } else {
      small.parameter.mutable_grad() = at::Tensor();
      EXPECT_THROW(scaler.step(small.optimizer), UsageError);
    }
  });
}

TEST(GradScaler, GrowsAfterItsInterval) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  Small small;
  small.step(scaler, 1);
  EXPECT_EQ(scaler.get_scale(), 8);
  small.step(scaler, 1);
  EXPECT_EQ(scaler.get_scale(), 16);
}

TEST(GradScaler, DisabledDoesNothingButStep) {
  GradScaler scaler({.enabled = false});
  Small small;
  EXPECT_TRUE(small.step(scaler, 1));
  EXPECT_TRUE(small.parameter.equal(torch::zeros({3})));
  EXPECT_TRUE(small.step(scaler, kInfinity)) << "it does not look";
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().as_dict().empty());
}

TEST(GradScaler, HasPythonsDefaults) {
  const auto state = GradScaler().state_dict();
  EXPECT_EQ(state.at("scale").as_double(), 65536);
  EXPECT_EQ(state.at("growth_factor").as_double(), 2);
  EXPECT_EQ(state.at("backoff_factor").as_double(), 0.5);
  EXPECT_EQ(state.at("growth_interval").as_int(), 2000);
  EXPECT_EQ(state.at("_growth_tracker").as_int(), 0);
}

TEST(GradScaler, RefusesCallsInTheWrongOrder) {
  Small small;
  GradScaler scaler;
  EXPECT_THROW(scaler.unscale_(small.optimizer), UsageError) << "nothing was scaled";
  EXPECT_THROW(scaler.step(small.optimizer), UsageError);
  EXPECT_THROW(scaler.update(), UsageError);
  small.backward(scaler, 1);
  EXPECT_THROW(scaler.update(), UsageError) << "no step";
  scaler.unscale_(small.optimizer);
  EXPECT_THROW(scaler.unscale_(small.optimizer), UsageError);
  EXPECT_TRUE(scaler.step(small.optimizer));
  EXPECT_THROW(scaler.step(small.optimizer), UsageError);
  EXPECT_THROW(scaler.unscale_(small.optimizer), UsageError);
  scaler.update();
  EXPECT_TRUE(small.step(scaler, 1));
}

TEST(GradScaler, RefusesWhatItCannotDo) {
  EXPECT_THROW(GradScaler({.growth_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler().load_state_dict(Value::Dict{}), UsageError);
  const auto half = torch::ones({3}, at::kHalf).set_requires_grad(true);
  torch::optim::SGD optimizer({half}, 1.0);
  GradScaler scaler({.init_scale = 8});
  scaler.scale(half.sum()).backward();
  EXPECT_THROW(scaler.unscale_(optimizer), UsageError);
}

TEST(Autocast, EndsWhereItEnds) {
  const auto a = torch::ones({2, 2});
  const auto product_type = [&] { return torch::mm(a, a).scalar_type(); };
  {
    const Autocast outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(product_type(), at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(product_type(), at::kHalf);
      const Autocast off(at::kCPU, at::kHalf, false);
      EXPECT_EQ(product_type(), at::kFloat);
    }
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_THROW(Autocast(at::kCPU, at::kFloat), UsageError);
  EXPECT_EQ(product_type(), at::kFloat) << "a guard that was refused changes nothing";
}

TEST(Autocast, LeavesItsCacheAsTheProgramHasSetIt) {
  at::autocast::set_autocast_cache_enabled(false);
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  }
  at::autocast::set_autocast_cache_enabled(true);
}

// Parameters are cast once and kept; on the way out the cast is forgotten, so that an update is seen.
TEST(Autocast, SeesParametersThatChanged) {
  const auto weight = torch::ones({2, 2}).set_requires_grad(true);
  const auto inputs = torch::ones({1, 2});
  const auto run = [&] {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    return torch::mm(inputs, weight).sum().item<float>();
  };
  EXPECT_EQ(run(), 4);
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(2);
  }
  EXPECT_EQ(run(), 8);
}

}  // namespace
}  // namespace lockstep
