// Adam and the schedules where Python cannot be asked: misuse, archives, what schedules share. Their numbers
// are compared with Python's in tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>

#include <limits>
#include <sstream>
#include <type_traits>

#include "../support/refusal.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor parameter(std::initializer_list<double> values) {
  return torch::tensor(std::vector<double>(values), at::kFloat).set_requires_grad(true);
}

void step(Adam& optimizer, at::Tensor& of, double gradient) {
  of.mutable_grad() = torch::full_like(of, gradient).detach();
  optimizer.step();
}

// What lesson 03 says of memory: with its weight and gradient, 16 bytes for each float32 parameter.
TEST(Adam, HoldsEightBytesAParameterBesideWeightAndGradient) {
  auto weight = torch::zeros({1000}, at::kFloat).set_requires_grad(true);
  Adam optimizer({weight}, 0.1);
  step(optimizer, weight, 1);
  const auto& state = static_cast<const torch::optim::AdamParamState&>(
      *optimizer.state().at(weight.unsafeGetTensorImpl()));
  EXPECT_FALSE(state.max_exp_avg_sq().defined());
  EXPECT_EQ(weight.nbytes() + weight.grad().nbytes() + state.exp_avg().nbytes() +
                state.exp_avg_sq().nbytes(),
            16 * 1000);
}

TEST(Adam, RefusesOptionsOutOfRange) {
  const auto with = [](const AdamOptions& options) {
    return refusal([&] { Adam({parameter({1})}, options); });
  };
  EXPECT_THAT(with(AdamOptions(-1)), HasSubstr("lr must not be negative, and it is -1"));
  EXPECT_THAT(with(AdamOptions().betas({0.9, 1.0})), HasSubstr("the second of betas"));
  EXPECT_THAT(with(AdamOptions().betas({-0.1, 0.9})), HasSubstr("the first of betas"));
  EXPECT_THAT(with(AdamOptions().eps(-1)), HasSubstr("eps"));
  EXPECT_THAT(with(AdamOptions().weight_decay(-1)), HasSubstr("weight_decay"));
  std::vector<torch::optim::OptimizerParamGroup> theirs;
  theirs.emplace_back(std::vector<at::Tensor>{parameter({1})},
                      std::make_unique<torch::optim::AdamOptions>(0.1));
  EXPECT_THAT(refusal([&] { Adam optimizer(theirs); }), HasSubstr("lockstep::AdamOptions"));
}

TEST(Adam, KeepsTheOptionsOfAGroupThatComesLater) {
  Adam optimizer({parameter({1})}, AdamOptions(0.1));
  const auto add = [&](double lr) {
    optimizer.add_param_group({{parameter({1})}, std::make_unique<AdamOptions>(lr)});
  };
  add(0.3);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({parameter({1})}));
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  EXPECT_EQ(rates, (std::vector<double>{0.1, 0.3, 0.1}));
  EXPECT_THAT(refusal([&] { add(-1); }), HasSubstr("lr must not be negative"));
  EXPECT_EQ(optimizer.param_groups().size(), 3u);
}

TEST(AdamW, DecouplesAGroupThatComesLater) {
  AdamW optimizer({parameter({1})});
  const auto add = [&](std::unique_ptr<torch::optim::OptimizerOptions> options) {
    optimizer.add_param_group({{parameter({1})}, std::move(options)});
  };
  EXPECT_THAT(refusal([&] { add(std::make_unique<AdamOptions>(0.1)); }), HasSubstr("AdamWOptions"));
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
  auto coupled = std::make_unique<AdamWOptions>(0.1);
  coupled->decoupled_weight_decay(false);
  add(std::move(coupled));
  EXPECT_TRUE(static_cast<AdamOptions&>(optimizer.param_groups().back().options())
                  .decoupled_weight_decay());
}

TEST(Adam, RefusesWhatItCannotUpdate) {
  auto dense = parameter({1, 2});
  Adam optimizer({dense});
  dense.mutable_grad() = torch::ones({2}).to_sparse();
  EXPECT_THAT(refusal([&] { optimizer.step(); }), HasSubstr("sparse"));
  auto complex = torch::ones({2}, at::kComplexFloat).set_requires_grad(true);
  Adam of_complex({complex});
  complex.mutable_grad() = torch::ones({2}, at::kComplexFloat);
  EXPECT_THAT(refusal([&] { of_complex.step(); }), HasSubstr("complex"));
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

double decay_of(AdamW& optimizer) {
  const auto& options = static_cast<const AdamOptions&>(optimizer.param_groups()[0].options());
  EXPECT_TRUE(options.decoupled_weight_decay());
  return options.weight_decay();
}

TEST(AdamW, DecaysHoweverItsLearningRateIsGiven) {
  AdamW plain({parameter({1})}), by_number({parameter({1})}, 0.1);
  EXPECT_EQ(decay_of(plain), 0.01);
  EXPECT_EQ(decay_of(by_number), 0.01);
  auto one = parameter({1});
  AdamW stepped({one}, 0.1);
  step(stepped, one, 0);
  EXPECT_FLOAT_EQ(one.item<float>(), 0.999f);

  const auto set =
      AdamWOptions(0.2).betas({0.5, 0.6}).eps(0.1).amsgrad(true).maximize(true).lr(0.3);
  AdamW of_options({parameter({1})}, set);
  EXPECT_EQ(decay_of(of_options), 0.01);
  const auto& options = static_cast<const AdamOptions&>(of_options.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.3);
  EXPECT_EQ(options.betas(), std::make_tuple(0.5, 0.6));
  EXPECT_EQ(options.eps(), 0.1);
  EXPECT_TRUE(options.amsgrad() && options.maximize());
}

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> group_with(const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameter({1})}, std::make_unique<Options>(options));
  return groups;
}

TEST(AdamW, TakesNoAdamOptions) {
  using Parameters = std::vector<at::Tensor>;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  static_assert(std::is_constructible_v<AdamW, Parameters, AdamWOptions>);
  static_assert(!std::is_constructible_v<AdamW, Parameters, AdamOptions>);
  static_assert(!std::is_constructible_v<AdamW, Groups, AdamOptions>);
  EXPECT_THAT(refusal([] { AdamW optimizer(group_with(AdamOptions(0.1))); }),
              HasSubstr("lockstep::AdamWOptions"));
  AdamW optimizer(group_with(AdamWOptions(0.1)));
  EXPECT_EQ(decay_of(optimizer), 0.01);
  AdamW of_its_groups(optimizer.param_groups());
  EXPECT_EQ(decay_of(of_its_groups), 0.01);
}

TEST(AdamW, StaysItselfWhenItLoadsAnAdamsArchive) {
  Adam adam({parameter({1})}, AdamOptions(0.1).weight_decay(0.5));
  std::stringstream archive;
  torch::save(adam, archive);
  AdamW adamw({parameter({1})});
  torch::load(adamw, archive);
  EXPECT_EQ(decay_of(adamw), 0.5);
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
  EXPECT_THAT(refusal([&] {
                optimizer.set_state(one, {{"step", torch::zeros({})}});
              }),
              HasSubstr("exp_avg"));
}

std::string as_text(const Value& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_bool() || value.is_none())
    return value.is_none() ? "None" : value.as_bool() ? "T" : "F";
  if (value.is_int() || value.is_double()) return std::to_string(value.as_double());
  std::string text;
  if (value.is_list())
    for (const auto& item : value.as_list()) text += as_text(item) + ", ";
  else
    for (const auto& [key, item] : value.as_dict())
      text += key.text() + ": " + as_text(item) + ", ";
  return "[" + text + "]";
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
  EXPECT_THAT(refusal(later), HasSubstr("initial_lr"));
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
  EXPECT_THAT(refusal([&] { fixed.step(); }), HasSubstr("3 parameter groups"));
}

TEST_F(Schedule, NamesTheEntryThatIsWrong) {
  StepLR schedule(optimizer, {.step_size = 3});
  auto state = schedule.state_dict();
  state.as_dict()["gamma"] = "much";
  EXPECT_THAT(refusal([&] { schedule.load_state_dict(state); }), HasSubstr("\"gamma\""));
  state = schedule.state_dict();
  state.as_dict()["base_lrs"] = Value::List{1.0, 2.0};
  EXPECT_THAT(refusal([&] { schedule.load_state_dict(state); }),
              HasSubstr("2 learning rates for 1"));
}

TEST_F(Schedule, OfSchedulesRefusesWhatDoesNotFit) {
  const auto part = [&] {
    return std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = 3});
  };
  torch::optim::SGD other({parameter({1})}, torch::optim::SGDOptions(0.25));
  EXPECT_THAT(refusal([&] { ChainedScheduler(other, {part()}); }), HasSubstr("another optimizer"));
  EXPECT_THAT(refusal([&] { ChainedScheduler(optimizer, {}); }), HasSubstr("at least one"));
  EXPECT_THAT(refusal([&] {
                SequentialLR(optimizer, {part(), part()}, {});
              }),
              HasSubstr("one milestone less"));
  const auto chain = std::make_shared<ChainedScheduler>(
      optimizer, std::vector<std::shared_ptr<LRScheduler>>{part()});
  SequentialLR late(optimizer, {part(), chain}, {1});
  EXPECT_THAT(refusal([&] { late.step(); }), HasSubstr("first part"));
}

TEST_F(Schedule, AChainIsWhereItsFirstPartIs) {
  const auto parts = [&] {
    return std::vector<std::shared_ptr<LRScheduler>>{
        std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = 3})};
  };
  ChainedScheduler chain(optimizer, parts());
  EXPECT_EQ(chain.last_epoch(), 0);
  chain.step();
  chain.step();
  EXPECT_EQ(chain.last_epoch(), 2);
  ChainedScheduler resumed(optimizer, parts());
  resumed.load_state_dict(chain.state_dict());
  EXPECT_EQ(resumed.last_epoch(), 2);
  EXPECT_FALSE(chain.state_dict().as_dict().contains("last_epoch")) << "as in Python";
}

// A state as `schedule` has it, but for one field, is refused with `text` in the reason and changes nothing.
void expect_refused(LRScheduler& schedule, const char* field, Value value, const char* text) {
  const auto before = as_text(schedule.state_dict());
  auto state = schedule.state_dict();
  state.as_dict()["last_epoch"] =
      7;  // what comes before the field in the state must not stay either
  if (state.as_dict().contains("_last_lr")) state.as_dict()["_last_lr"] = Value::List{0.125};
  state.as_dict()[field] = std::move(value);
  EXPECT_THAT(refusal([&] { schedule.load_state_dict(state); }), HasSubstr(text)) << field;
  EXPECT_EQ(as_text(schedule.state_dict()), before) << field;
  schedule.step();
}

TEST_F(Schedule, RefusesAStateThatNoConstructorWouldTake) {
  StepLR step(optimizer, {.step_size = 3});
  expect_refused(step, "step_size", 0, "StepLR: step_size");
  expect_refused(step, "gamma", "much", "\"gamma\"");
  expect_refused(step, "base_lrs", Value::List{}, "\"base_lrs\"");
  expect_refused(step, "base_lrs", Value::List{1.0, 2.0}, "\"base_lrs\"");
  expect_refused(step, "_last_lr", Value::List{1.0, 2.0}, "\"_last_lr\"");
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  expect_refused(step, "last_epoch", kMost, "\"last_epoch\"");
  expect_refused(step, "last_epoch", -kMost, "\"last_epoch\"");
  expect_refused(step, "_step_count", kMost, "\"_step_count\"");
  CosineAnnealingLR cosine(optimizer, {.T_max = 5});
  expect_refused(cosine, "T_max", 0, "CosineAnnealingLR: T_max");
  expect_refused(cosine, "T_max", kMost, "CosineAnnealingLR: T_max");
  ConstantLR constant(optimizer, {});
  expect_refused(constant, "factor", 0.0, "ConstantLR: factor");
  LinearLR linear(optimizer, {});
  expect_refused(linear, "start_factor", 0.0, "LinearLR: start_factor");
  expect_refused(linear, "end_factor", 1.5, "LinearLR: end_factor");
  expect_refused(linear, "total_iters", 0, "LinearLR: total_iters");
  MultiStepLR multi(optimizer, {.milestones = {2}});
  expect_refused(multi, "milestones", Value::Dict{{"two", 1}}, "\"milestones\"");
}

TEST_F(Schedule, OneCycleRefusesAStateThatItsConstructorWouldNotMake) {
  OneCycleLR schedule(optimizer, {.max_lr = {1.0}, .total_steps = 40});
  expect_refused(schedule, "total_steps", 0, "total_steps");
  expect_refused(schedule, "_anneal_func_type", "wild", "anneal_strategy");
  expect_refused(schedule, "_schedule_phases", Value::List{}, "\"_schedule_phases\"");
  for (const char* name : {"start_lr", "end_lr", "start_momentum", "end_momentum"}) {
    Value::List phases = schedule.state_dict().at("_schedule_phases").as_list();
    phases[1].as_dict()[name] = "elsewhere";
    expect_refused(schedule, "_schedule_phases", phases, "\"elsewhere\"");
  }
  torch::optim::Adagrad adagrad({parameter({1})});
  OneCycleLR fixed(adagrad, {.max_lr = {1.0}, .total_steps = 40, .cycle_momentum = false});
  for (auto& [name, value] : {std::pair{"max_momentum", 0.9}, std::pair{"base_momentum", 0.8}})
    (*schedule_values(adagrad))[0][name] = value;
  expect_refused(fixed, "cycle_momentum", true, "neither momentum nor beta1");
}

TEST_F(Schedule, OfSchedulesRefusesAStateOfAnyPart) {
  SequentialLR schedule(optimizer,
                        {std::make_shared<StepLR>(optimizer, StepLROptions{.step_size = 3}),
                         std::make_shared<LinearLR>(optimizer, LinearLROptions{})},
                        {2});
  expect_refused(schedule, "_milestones", Value::List{1, 2, 3}, "milestone");
  expect_refused(schedule, "_milestones", Value::List{}, "milestone");
  expect_refused(schedule, "_last_lr", Value::List{}, "\"_last_lr\"");
  expect_refused(schedule, "last_epoch", std::numeric_limits<std::int64_t>::max(), "last_epoch");
  Value::List parts = schedule.state_dict().at("_schedulers").as_list();
  parts[0].as_dict()["step_size"] = 2;
  parts[1].as_dict()["total_iters"] = 0;
  expect_refused(schedule, "_schedulers", parts, "LinearLR: total_iters");
  expect_refused(schedule, "_schedulers", Value::List{parts[0], 3}, "expected a dict");
}

TEST_F(Schedule, OneCycleStartsLaterOnlyWithTheValuesOfAFormerOne) {
  const OneCycleLROptions later{.max_lr = {1.0}, .total_steps = 40, .last_epoch = 3};
  const auto made = [&] { OneCycleLR schedule(optimizer, later); };
  const auto values = schedule_values(optimizer);
  for (const char* name : {"initial_lr", "max_lr", "max_momentum", "base_momentum", "min_lr"}) {
    EXPECT_THAT(refusal(made), HasSubstr("\"" + std::string(name) + "\""))
        << values->front().size();
    values->front()[name] = 0.5;
  }
  EXPECT_EQ(refusal(made), "");
}

TEST_F(Schedule, OneCycleEndsAndNeedsSomethingToCycle) {
  OneCycleLR schedule(optimizer, {.max_lr = {1.0}, .total_steps = 4});
  for (int i = 0; i < 4; ++i) schedule.step();
  EXPECT_THAT(refusal([&] { schedule.step(); }), HasSubstr("total_steps 4"));
  torch::optim::Adagrad adagrad({parameter({1})});
  EXPECT_THAT(refusal([&] { OneCycleLR(adagrad, {.max_lr = {1.0}, .total_steps = 9}); }),
              HasSubstr("cycle_momentum"));
}

}  // namespace
}  // namespace lockstep
