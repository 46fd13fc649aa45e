// Adam and the schedules where Python cannot be asked: misuse, archives, what schedules share. Their numbers
// are compared with Python's in tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>

#include <sstream>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Work>
std::string error_of(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

at::Tensor parameter(std::initializer_list<double> values) {
  return torch::tensor(std::vector<double>(values), at::kFloat).set_requires_grad(true);
}

void step(Adam& optimizer, at::Tensor& of, double gradient) {
  of.mutable_grad() = torch::full_like(of, gradient).detach();
  optimizer.step();
}

TEST(Adam, RefusesOptionsOutOfRange) {
  const auto with = [](const AdamOptions& options) {
    return error_of([&] { Adam({parameter({1})}, options); });
  };
  EXPECT_THAT(with(AdamOptions(-1)), HasSubstr("lr must not be negative, and it is -1"));
  EXPECT_THAT(with(AdamOptions().betas({0.9, 1.0})), HasSubstr("the second of betas"));
  EXPECT_THAT(with(AdamOptions().betas({-0.1, 0.9})), HasSubstr("the first of betas"));
  EXPECT_THAT(with(AdamOptions().eps(-1)), HasSubstr("eps"));
  EXPECT_THAT(with(AdamOptions().weight_decay(-1)), HasSubstr("weight_decay"));
  std::vector<torch::optim::OptimizerParamGroup> theirs;
  theirs.emplace_back(std::vector<at::Tensor>{parameter({1})},
                      std::make_unique<torch::optim::AdamOptions>(0.1));
  EXPECT_THAT(error_of([&] { Adam optimizer(theirs); }), HasSubstr("lockstep::AdamOptions"));
}

TEST(Adam, RefusesWhatItCannotUpdate) {
  auto dense = parameter({1, 2});
  Adam optimizer({dense});
  dense.mutable_grad() = torch::ones({2}).to_sparse();
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("sparse"));
  auto complex = torch::ones({2}, at::kComplexFloat).set_requires_grad(true);
  Adam of_complex({complex});
  complex.mutable_grad() = torch::ones({2}, at::kComplexFloat);
  EXPECT_THAT(error_of([&] { of_complex.step(); }), HasSubstr("complex"));
}

TEST(Adam, DecaysAsItsKindDoes) {
  auto one = parameter({1}), other = parameter({1});
  Adam adam({one}, AdamOptions(0.1));
  AdamW adamw({other}, AdamWOptions(0.1));
  step(adam, one, 0);
  step(adamw, other, 0);
  EXPECT_EQ(one.item<float>(), 1.0f);
  EXPECT_FLOAT_EQ(other.item<float>(), 0.999f) << "AdamW decays without a gradient";
}

TEST(Adam, GoesOnFromAnArchive) {
  auto one = parameter({1, -2}), other = parameter({1, -2});
  Adam unbroken({one}, AdamOptions(0.1).amsgrad(true));
  Adam first({other}, AdamOptions(0.1).amsgrad(true));
  for (const double gradient : {0.5, -3.0}) {
    step(unbroken, one, gradient);
    step(first, other, gradient);
  }
  std::stringstream archive;
  torch::save(first, archive);
  Adam second({other}, AdamOptions(0.7));
  torch::load(second, archive);
  step(unbroken, one, 2);
  step(second, other, 2);
  EXPECT_TRUE(at::equal(one, other)) << one << other;
  EXPECT_EQ(second.state_of(other).at("step").as_tensor().item<float>(), 3);
}

TEST(Adam, HasNoStateBeforeAStepAndTakesNoHalfOne) {
  auto one = parameter({1});
  Adam optimizer({one});
  EXPECT_TRUE(optimizer.state_of(one).empty());
  EXPECT_THAT(error_of([&] {
                optimizer.set_state(one, {{"step", torch::zeros({})}});
              }),
              HasSubstr("exp_avg"));
}

struct Groups : ::testing::Test {
  torch::optim::SGD optimizer{{parameter({1})}, torch::optim::SGDOptions(0.5)};
  double lr() { return optimizer.param_groups().front().options().get_lr(); }
};
using Schedule = Groups;

TEST_F(Schedule, SharesTheInitialLearningRateWithOthersOfItsOptimizer) {
  LinearLR first(optimizer, {.start_factor = 0.1});
  EXPECT_EQ(lr(), 0.5 * 0.1);
  LambdaLR second(optimizer, {.lr_lambda = {[](std::int64_t) { return 1.0; }}});
  EXPECT_EQ(lr(), 0.5) << "of the optimizer as it was, not as the first schedule left it";
  torch::optim::SGD other({parameter({1})}, torch::optim::SGDOptions(0.25));
  LambdaLR third(other, {.lr_lambda = {[](std::int64_t) { return 1.0; }}});
  EXPECT_THAT(third.get_last_lr(), ElementsAre(0.25));
}

TEST_F(Schedule, ForgetsAnOptimizerThatHasNoneLeft) {
  { LinearLR first(optimizer, {.start_factor = 0.1}); }
  optimizer.param_groups().front().options().set_lr(2);
  LinearLR second(optimizer, {.start_factor = 0.5});
  EXPECT_EQ(lr(), 1);
}

TEST_F(Schedule, StartsLaterOnlyWhereItKnowsWhereItBegan) {
  const auto later = [&] {
    return StepLR(optimizer, {.step_size = 3, .last_epoch = 2}).last_epoch();
  };
  EXPECT_THAT(error_of(later), HasSubstr("initial_lr"));
  const auto values = schedule_values(optimizer);
  values->front()["initial_lr"] = 1;
  EXPECT_EQ(later(), 3);
  EXPECT_EQ(lr(), 0.5 * 0.1);
}

TEST_F(Schedule, RefusesAGroupThatCameLater) {
  StepLR schedule(optimizer, {.step_size = 3});
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameter({2})}));
  schedule.step();  // keeps the rates as they are, so it does not matter yet
  LambdaLR fixed(optimizer, {.lr_lambda = {[](std::int64_t) { return 1.0; }}});
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameter({3})}));
  EXPECT_THAT(error_of([&] { fixed.step(); }), HasSubstr("3 parameter groups"));
}

TEST_F(Schedule, NamesTheEntryThatIsWrong) {
  StepLR schedule(optimizer, {.step_size = 3});
  auto state = schedule.state_dict();
  state.as_dict()["gamma"] = "much";
  EXPECT_THAT(error_of([&] { schedule.load_state_dict(state); }), HasSubstr("\"gamma\""));
  state = schedule.state_dict();
  state.as_dict()["base_lrs"] = Value::List{1.0, 2.0};
  EXPECT_THAT(error_of([&] { schedule.load_state_dict(state); }),
              HasSubstr("2 learning rates for 1"));
}

TEST_F(Schedule, OfSchedulesRefusesWhatDoesNotFit) {
  const auto part = [&] {
    return std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = 3});
  };
  torch::optim::SGD other({parameter({1})}, torch::optim::SGDOptions(0.25));
  EXPECT_THAT(error_of([&] { ChainedScheduler(other, {part()}); }), HasSubstr("another optimizer"));
  EXPECT_THAT(error_of([&] { ChainedScheduler(optimizer, {}); }), HasSubstr("at least one"));
  EXPECT_THAT(error_of([&] {
                SequentialLR(optimizer, {part(), part()}, {});
              }),
              HasSubstr("one milestone less"));
  const auto chain = std::make_shared<ChainedScheduler>(
      optimizer, std::vector<std::shared_ptr<LRScheduler>>{part()});
  SequentialLR late(optimizer, {part(), chain}, {1});
  EXPECT_THAT(error_of([&] { late.step(); }), HasSubstr("first part"));
}

TEST_F(Schedule, OneCycleEndsAndNeedsSomethingToCycle) {
  OneCycleLR schedule(optimizer, {.max_lr = {1.0}, .total_steps = 4});
  for (int i = 0; i < 4; ++i) schedule.step();
  EXPECT_THAT(error_of([&] { schedule.step(); }), HasSubstr("total_steps 4"));
  torch::optim::Adagrad adagrad({parameter({1})});
  EXPECT_THAT(error_of([&] { OneCycleLR(adagrad, {.max_lr = {1.0}, .total_steps = 9}); }),
              HasSubstr("cycle_momentum"));
}

}  // namespace
}  // namespace lockstep
