// An optimizer that loads goes on as the one that saved; what does not fit is refused. tests/parity
// compares the layout with Python's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/models.h>

#include <functional>
#include <memory>
#include <optional>

#include "file.h"

namespace lockstep {
namespace {

namespace optim = torch::optim;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Make = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;
template <class Optimizer, class Options>
Make make(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

std::map<std::string, Make> all_optimizers() {
  return {{"SGD", make<optim::SGD>(optim::SGDOptions(0.1))},
          {"SGD momentum", make<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true))},
          {"Adam", make<optim::Adam>(optim::AdamOptions(0.1))},
          {"AdamW amsgrad", make<optim::AdamW>(optim::AdamWOptions(0.1).amsgrad(true))},
          {"own Adam", make<Adam>(AdamOptions(0.1))},
          {"own AdamW", make<AdamW>(AdamWOptions(0.1))},
          {"RMSprop", make<optim::RMSprop>(optim::RMSpropOptions(0.1))},
          {"RMSprop all",
           make<optim::RMSprop>(optim::RMSpropOptions(0.1).momentum(0.5).centered(true))},
          {"Adagrad", make<optim::Adagrad>(optim::AdagradOptions(0.1).lr_decay(0.01))}};
}

// Steps from the same gradients each time.
void train(Mlp& net, optim::Optimizer& optimizer, int first, int steps) {
  for (int step = first; step < first + steps; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + step));
    optimizer.zero_grad();
    net(torch::rand({4, 5})).pow(2).sum().backward();
    optimizer.step();
  }
}

Mlp new_net(std::uint64_t seed = 1) {
  torch::manual_seed(seed);
  return Mlp(5, 4, 3);
}

TEST(OptimizerState, ResumedGoesOnBitForBit) {
  const CheckpointFile file;
  for (const auto& [name, create] : all_optimizers()) {
    auto net = new_net();
    const auto optimizer = create(net->parameters());
    train(net, *optimizer, 0, 3);
    const auto saved = file.round_trip(
        Value::Dict{{"model", state_dict(*net)}, {"optimizer", state_dict(*optimizer)}});
    train(net, *optimizer, 3, 3);

    auto resumed = new_net(/*seed=*/2);
    const auto other = create(resumed->parameters());
    load_state_dict(*resumed, saved.at("model"));
    load_state_dict(*other, saved.at("optimizer"));
    train(resumed, *other, 3, 3);
    const auto wanted = net->parameters(), found = resumed->parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_TRUE(torch::equal(wanted[i], found[i])) << name;
  }
}

// That the test above can fail: without the state the runs part.
TEST(OptimizerState, WithoutItTheRunsPart) {
  for (const auto& [name, create] : all_optimizers()) {
    if (name == "SGD") continue;  // has no state
    auto net = new_net();
    const auto optimizer = create(net->parameters());
    train(net, *optimizer, 0, 3);
    auto resumed = new_net(2);
    load_state_dict(*resumed, state_dict(*net));
    const auto other = create(resumed->parameters());
    train(net, *optimizer, 3, 1);
    train(resumed, *other, 3, 1);
    EXPECT_FALSE(torch::equal(net->fc2->bias, resumed->fc2->bias)) << name;
  }
}

TEST(OptimizerState, LoadsCopies) {
  auto net = new_net();
  optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.1).momentum(0.9));
  train(net, optimizer, 0, 1);
  const auto state = state_dict(optimizer);
  auto second = new_net();
  optim::SGD other(second->parameters(), optim::SGDOptions(0.2).momentum(0.5));
  load_state_dict(other, state);
  train(net, optimizer, 1, 1);
  const auto& mine = state.at("state").at(0).at("momentum_buffer").as_tensor();
  const auto theirs = state_dict(other).at("state").at(0).at("momentum_buffer").as_tensor();
  EXPECT_FALSE(torch::equal(mine, theirs)) << "state_dict shares, load_state_dict copies";
}

TEST(OptimizerState, OptionsComeWithIt) {
  auto net = new_net();
  Adam optimizer(net->parameters(), AdamOptions(0.25).betas({0.8, 0.9}).amsgrad(true));
  Adam other(net->parameters());
  auto& options = static_cast<AdamOptions&>(other.param_groups()[0].options());
  load_state_dict(other, state_dict(optimizer));
  EXPECT_EQ(options.lr(), 0.25) << "in place";
  EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
  EXPECT_TRUE(options.amsgrad());
}

TEST(OptimizerState, GroupsAreNumberedThrough) {
  auto net = new_net();
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->fc1->parameters());
  groups.emplace_back(net->fc2->parameters(), std::make_unique<optim::SGDOptions>(0.5));
  optim::SGD optimizer(groups, optim::SGDOptions(0.1).momentum(0.9));
  const auto state = state_dict(optimizer);
  const auto& saved = state.at("param_groups").as_list();
  EXPECT_EQ(saved[1].at("params").as_list()[1].as_int(), 3);
  EXPECT_EQ(saved[1].at("lr").as_double(), 0.5);
  // Python may have numbered them in another way; each entry finds its parameter by place.
  auto swapped = state;
  const auto weight = torch::full_like(net->fc2->weight, 2),
             bias = torch::full_like(net->fc2->bias, 3);
  Value::List renumbered = saved;
  renumbered[1].as_dict()["params"] = Value::List{30, 20};
  swapped.as_dict()["param_groups"] = renumbered;
  swapped.as_dict()["state"] = Value::Dict{{20, Value::Dict{{"momentum_buffer", bias}}},
                                           {30, Value::Dict{{"momentum_buffer", weight}}}};
  load_state_dict(optimizer, swapped);
  const auto loaded = state_dict(optimizer);
  EXPECT_TRUE(torch::equal(loaded.at("state").at(3).at("momentum_buffer").as_tensor(), bias));
  EXPECT_FALSE(loaded.at("state").as_dict().contains(0));
}

TEST(OptimizerState, StateGoesToItsParametersTypeAndTheStepDoesNot) {
  auto net = new_net();
  Adam optimizer(net->parameters());
  train(net, optimizer, 0, 2);
  const auto state = state_dict(optimizer);
  auto doubles = new_net();
  doubles->to(torch::kDouble);
  Adam other(doubles->parameters());
  load_state_dict(other, state);
  const auto loaded = state_dict(other).at("state").at(0);
  EXPECT_EQ(loaded.at("exp_avg").as_tensor().scalar_type(), torch::kDouble);
  EXPECT_EQ(loaded.at("step").as_tensor().scalar_type(), torch::kFloat);
  EXPECT_EQ(loaded.at("step").as_tensor().item<float>(), 2);
}

TEST(OptimizerState, SchedulesValuesAreInTheGroups) {
  auto net = new_net();
  optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.4));
  EXPECT_FALSE(
      state_dict(optimizer).at("param_groups").as_list()[0].as_dict().contains("initial_lr"));
  LinearLR schedule(optimizer, {.start_factor = 0.5});
  const auto state = state_dict(optimizer);
  EXPECT_EQ(state.at("param_groups").as_list()[0].at("initial_lr").as_double(), 0.4);
  optim::SGD other(net->parameters(), optim::SGDOptions(0.9));
  LinearLR others(other, {.start_factor = 0.5});
  load_state_dict(other, state);
  EXPECT_EQ((*schedule_values(other))[0].at("initial_lr"), 0.4);
}

double initial_lr_in(const Value& state) {
  return state.at("param_groups").as_list()[0].at("initial_lr").as_double();
}

// The order in which Python's programs resume: the optimizer first, its schedule from what it brought.
TEST(OptimizerState, SchedulesValuesWaitForTheFirstSchedule) {
  auto net = new_net();
  optim::SGD first(net->parameters(), optim::SGDOptions(0.4));
  LinearLR schedule(first, {.start_factor = 0.5});
  const auto state = state_dict(first);

  optim::SGD second(net->parameters(), optim::SGDOptions(0.9));
  load_state_dict(second, state);
  EXPECT_EQ(initial_lr_in(state_dict(second)), 0.4);
  {
    StepLR from_the_start(second, {.step_size = 3});
    EXPECT_EQ(from_the_start.state_dict().at("base_lrs").as_list()[0].as_double(), 0.4);
    EXPECT_EQ(from_the_start.get_last_lr()[0], 0.2) << "the lr itself is as loaded";
  }

  optim::SGD third(net->parameters(), optim::SGDOptions(0.9));
  load_state_dict(third, state);
  EXPECT_THROW(StepLR(third, {.step_size = 0}), UsageError);  // takes nothing
  StepLR later(third, {.step_size = 3, .last_epoch = 2});
  EXPECT_EQ(later.last_epoch(), 3);
  EXPECT_EQ(later.state_dict().at("base_lrs").as_list()[0].as_double(), 0.4);
  EXPECT_EQ(initial_lr_in(state_dict(third)), 0.4);
}

TEST(OptimizerState, SchedulesValuesThatWaitEndWithTheirOptimizer) {
  auto net = new_net();
  optim::SGD with(net->parameters(), optim::SGDOptions(0.4));
  LinearLR schedule(with, {.start_factor = 0.5});
  const auto state = state_dict(with);
  const auto has_initial_lr = [](optim::Optimizer& optimizer) {
    const Value::List groups = state_dict(optimizer).at("param_groups").as_list();
    return groups[0].as_dict().contains("initial_lr");
  };
  std::optional<optim::SGD> place;  // one address for all
  place.emplace(net->parameters(), optim::SGDOptions(0.4));
  const auto plain = state_dict(*place);
  load_state_dict(*place, state);
  EXPECT_TRUE(has_initial_lr(*place));
  place.emplace(new_net()->parameters(), optim::SGDOptions(0.7));
  EXPECT_FALSE(has_initial_lr(*place)) << "another optimizer's at the same address";
  load_state_dict(*place, state);
  load_state_dict(*place, plain);
  EXPECT_FALSE(has_initial_lr(*place)) << "the last load's count";
}

TEST(OptimizerState, AdamWStaysItselfWhateverItLoads) {
  auto net = new_net();
  Adam adam(net->parameters(), AdamOptions(0.1).weight_decay(0.5));
  AdamW adamw(net->parameters());
  load_state_dict(adamw, state_dict(adam));
  const auto& options = static_cast<const AdamOptions&>(adamw.param_groups()[0].options());
  EXPECT_TRUE(options.decoupled_weight_decay());
  EXPECT_EQ(options.weight_decay(), 0.5);
  load_state_dict(adam, state_dict(adamw));
  const auto& of_adam = static_cast<const AdamOptions&>(adam.param_groups()[0].options());
  EXPECT_TRUE(of_adam.decoupled_weight_decay()) << "as Python's Adam, which is told by its options";
}

TEST(OptimizerState, RefusesWhatDoesNotFitAndChangesNothing) {
  auto net = new_net();
  Adam optimizer(net->parameters(), AdamOptions(0.5));
  train(net, optimizer, 0, 1);
  const auto good = state_dict(optimizer);
  const auto refused = [&](const Value& state) {
    const auto text = refusal([&] { load_state_dict(optimizer, state); });
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
    EXPECT_EQ(optimizer.state().size(), 4u);
    return text;
  };
  const auto with_group = [&](const Key& key, Value value) {
    auto state = good;
    Value::List groups = good.at("param_groups").as_list();
    groups[0].as_dict()["lr"] = 0.1;
    groups[0].as_dict()[key] = std::move(value);
    state.as_dict()["param_groups"] = groups;
    return state;
  };
  const auto with_state = [&](const Key& key, Value value) {
    auto state = good;
    state.as_dict()["state"].as_dict()[key] = std::move(value);
    return state;
  };
  EXPECT_THAT(refused(with_group("params", Value::List{0, 1})),
              HasSubstr("has 2 parameters, the optimizer's 4"));
  EXPECT_THAT(refused(with_group("params", Value::List{0, 1, 2, 2})),
              HasSubstr("2 is named twice"));
  EXPECT_THAT(refused(with_group("betas", 3)),
              AllOf(HasSubstr("group 0 of Adam"), HasSubstr("betas")));
  EXPECT_THAT(refused(with_group("lr", "fast")), HasSubstr("\"lr\": expected a float"));
  EXPECT_THAT(refused(with_state(9, Value::Dict{{"step", 1}})),
              HasSubstr("parameter 9, which is in no group"));
  EXPECT_THAT(refused(with_state(1, Value::Dict{{"step", 1}})),
              HasSubstr("\"exp_avg\" is missing"));
  EXPECT_THAT(refused(with_state(1, Value::Dict{{"exp_avg", torch::ones({1})}})),
              HasSubstr("no entry \"step\""));
  auto expanded = good.at("state").at(0).as_dict();
  expanded["exp_avg"] = torch::ones({1}).expand({1 << 30, 1 << 20});
  EXPECT_THAT(refused(with_state(0, expanded)),
              HasSubstr("\"exp_avg\" has the sizes [1073741824, 1048576]"));
  auto two_groups = good;
  two_groups.as_dict()["param_groups"] = Value::List{1, 2};
  EXPECT_THAT(refused(two_groups), HasSubstr("has 2 parameter groups, the optimizer 1"));
  EXPECT_THAT(refused(Value::Dict{}), HasSubstr("no entry \"param_groups\""));

  optim::SGD sgd(net->parameters(), 0.1);
  auto maximizing = state_dict(sgd);
  maximizing.as_dict()["param_groups"] =
      Value::List{Value::Dict{{"maximize", true}, {"params", Value::List{0, 1, 2, 3}}}};
  EXPECT_THAT(refusal([&] { load_state_dict(sgd, maximizing); }),
              HasSubstr("\"maximize\": is True"));
  optim::AdamW adamw(net->parameters());
  optim::Adam adam(net->parameters());
  EXPECT_THAT(refusal([&] { load_state_dict(adam, state_dict(adamw)); }),
              HasSubstr("decoupled_weight_decay"));
  optim::Adagrad adagrad(net->parameters());
  auto stateless = state_dict(adagrad);
  stateless.as_dict()["state"] = Value::Dict{};
  EXPECT_THAT(refusal([&] { load_state_dict(adagrad, stateless); }),
              HasSubstr("and 4 parameters has none"));
  optim::LBFGS lbfgs(net->parameters());
  EXPECT_THAT(refusal([&] { state_dict(lbfgs); }), HasSubstr("cannot be saved"));
}

// What older Pythons write: integer steps, None for a buffer not yet made.
TEST(OptimizerState, OlderFiles) {
  auto net = new_net();
  optim::SGD optimizer(net->parameters(), optim::SGDOptions(0.1).momentum(0.9));
  auto state = state_dict(optimizer);
  state.as_dict()["state"] = Value::Dict{{0, Value::Dict{{"momentum_buffer", {}}}}};
  load_state_dict(optimizer, state);
  train(net, optimizer, 0, 1);
  Adam adam(net->parameters());
  train(net, adam, 0, 1);
  state = state_dict(adam);
  state.as_dict()["state"].as_dict()[0].as_dict()["step"] = 41;
  load_state_dict(adam, state);
  EXPECT_EQ(state_dict(adam).at("state").at(0).at("step").as_tensor().item<float>(), 41);
}

}  // namespace
}  // namespace lockstep
