// A model's state_dict: what does not fit is told at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/train/models.h>

#include "file.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Value with_prefix(const Value& state, const std::string& prefix) {
  Value::Dict renamed;
  for (const auto& [key, value] : state.as_dict()) renamed[prefix + key.text()] = value;
  return renamed;
}

TEST(ModelState, PythonsNamesInPythonsOrder) {
  EXPECT_THAT(
      state_dict(*ConvNet(10)).as_dict().keys(),
      ElementsAre("conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias", "bn1.running_mean",
                  "bn1.running_var", "bn1.num_batches_tracked", "conv2.weight", "conv2.bias",
                  "bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var",
                  "bn2.num_batches_tracked", "fc.weight", "fc.bias"));
  const torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(false)),
                                  torch::nn::ReLU(), torch::nn::Linear(3, 1));
  EXPECT_THAT(state_dict(*net).as_dict().keys(), ElementsAre("0.weight", "2.weight", "2.bias"));
}

TEST(ModelState, SharesTheModelsMemory) {
  Mlp net(4, 3, 2);
  const auto state = state_dict(*net);
  EXPECT_FALSE(state.at("fc1.weight").as_tensor().requires_grad());
  state.at("fc1.weight").as_tensor().fill_(2);
  EXPECT_EQ(net->fc1->weight.sum().item<float>(), 24);
}

TEST(ModelState, ComesBackThroughAFile) {
  const CheckpointFile file;
  torch::manual_seed(1);
  ConvNet net(10);
  net(torch::rand({8, 784}));  // moves the running statistics
  ConvNet other(10);
  const auto weight = other->fc->weight;
  load_state_dict(*other, file.round_trip(state_dict(*net)).value);
  const auto wanted = state_dict(*net), found = state_dict(*other);
  for (const auto& [key, value] : wanted.as_dict())
    EXPECT_TRUE(torch::equal(found.at(key).as_tensor(), value.as_tensor())) << key.text();
  EXPECT_EQ(weight.data_ptr(), other->fc->weight.data_ptr())
      << "in place: optimizers keep their tensors";
  EXPECT_TRUE(other->fc->weight.requires_grad());
}

TEST(ModelState, StrictTellsEverythingAtOnceAndChangesNothing) {
  Mlp net(4, 3, 2);
  Value::Dict state = state_dict(*Mlp(4, 5, 2)).as_dict();
  Value::Dict wrong;
  for (const auto& [key, value] : state)
    if (key.text() != "fc2.bias") wrong[key] = value;
  wrong["fc3.weight"] = torch::ones({1});
  const auto before = net->fc1->bias.clone();
  const auto text = refusal([&] { load_state_dict(*net, wrong); });
  EXPECT_THAT(text,
              AllOf(HasSubstr("missing in it:\n    fc2.bias"),
                    HasSubstr("not in the model:\n    fc3.weight"),
                    HasSubstr("fc1.weight: [5, 4] saved, [3, 4] in the model"),
                    HasSubstr("fc2.weight: [2, 5] saved, [2, 3]"), Not(HasSubstr("wrapper"))));
  EXPECT_TRUE(torch::equal(net->fc1->bias, before));

  const auto keys = load_state_dict(*net, wrong, {.strict = false});
  EXPECT_THAT(keys.missing, ElementsAre("fc2.bias"));
  EXPECT_THAT(keys.unexpected, ElementsAre("fc3.weight"));
  EXPECT_EQ(keys.mismatched.size(), 3u);
  EXPECT_TRUE(load_state_dict(*net, state_dict(*Mlp(4, 3, 2))).empty());
}

TEST(ModelState, KnowsAWrappersNames) {
  Mlp net(4, 3, 2);
  const auto state = state_dict(*net);
  EXPECT_THAT(refusal([&] { load_state_dict(*net, with_prefix(state, "module.")); }),
              HasSubstr("Save the module inside it"));
  EXPECT_THAT(refusal([&] { load_state_dict(*net, with_prefix(state, "net.")); }),
              Not(HasSubstr("wrapper")));
  struct WrapperImpl : torch::nn::Module {
    explicit WrapperImpl(Mlp inner) { register_module("module", inner); }
  } wrapper{net};
  EXPECT_THAT(refusal([&] { load_state_dict(wrapper, state); }), HasSubstr("inside the wrapper"));
}

TEST(ModelState, RefusesWhatIsNoTensor) {
  Mlp net(4, 3, 2);
  auto state = state_dict(*net);
  state.as_dict()["fc1.bias"] = 3;
  EXPECT_THAT(refusal([&] { load_state_dict(*net, state, {.strict = false}); }),
              AllOf(HasSubstr("fc1.bias"), HasSubstr("kind int")));
  EXPECT_THAT(refusal([&] { load_state_dict(*net, torch::ones({1})); }),
              HasSubstr("expected a dict"));
}

TEST(ModelState, ConvertsTypes) {
  Mlp net(4, 3, 2);
  Value::Dict halves;
  for (const auto& [key, value] : state_dict(*net).as_dict())
    halves[key] = torch::full_like(value.as_tensor(), 0.5).to(torch::kHalf);
  load_state_dict(*net, halves);
  EXPECT_EQ(net->fc1->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(net->fc1->weight.sum().item<float>(), 6);
}

}  // namespace
}  // namespace lockstep
