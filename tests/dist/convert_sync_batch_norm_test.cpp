// convert_sync_batchnorm: what it reaches, what it keeps, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/models.h>
#include <lockstep/train/sync_batch_norm.h>

#include "../support/thread_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;
using Names = std::vector<std::string>;

// torchvision's way to put one Sequential into another.
struct StackImpl : torch::nn::SequentialImpl {
  using torch::nn::SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return torch::nn::SequentialImpl::forward(x); }
};
TORCH_MODULE(Stack);

// Layers at three depths: a member of ours, one in a Sequential, one in a Sequential in it.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", SyncBatchNorm(4, nullptr));
    rest = register_module(
        "rest", Sequential(Linear(4, 4), BatchNorm1d(4), Stack(Linear(4, 4), BatchNorm1d(4))));
  }
  at::Tensor forward(const at::Tensor& x) { return rest->forward(first->forward(x)); }
  SyncBatchNorm first{nullptr};
  Sequential rest{nullptr};
};
TORCH_MODULE(Net);

at::Tensor rows_of(int rank) {
  return at::arange(12, at::kFloat).reshape({3, 4}).square() * (rank + 1) + rank;
}

TEST(ConvertSyncBatchNorm, ReachesNestedLayersAndTheirUsersRunThem) {
  std::vector<at::Tensor> outputs(2);
  run_thread_ranks(2, [&](ProcessGroupPtr group) {
    auto net = seeded(1, [] { return Net(); });
    EXPECT_EQ(convert_sync_batchnorm(*net, group), (Names{"first", "rest.1", "rest.2.1"}));
    outputs[static_cast<std::size_t>(group->getRank())] = net->forward(rows_of(group->getRank()));
  });
  auto plain = seeded(1, [] { return Net(); });
  const auto whole = plain->forward(at::cat({rows_of(0), rows_of(1)}));
  EXPECT_LE((at::cat(outputs) - whole).abs().max().item<double>(), 2e-5);
  EXPECT_GE((plain->forward(rows_of(0)) - whole.narrow(0, 0, 3)).abs().max().item<double>(), 0.1)
      << "plain layers on their own batches would differ";
}

TEST(ConvertSyncBatchNorm, KeepsTensorsModeOptionsAndNames) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    Sequential net(Linear(4, 4),
                   BatchNorm1d(torch::nn::BatchNormOptions(4).momentum(0.3).eps(0.2)));
    auto& plain = *net->ptr(1)->as<torch::nn::BatchNorm1dImpl>();
    plain.weight.requires_grad_(false);
    plain.eval();
    const auto weight = plain.weight, mean = plain.running_mean;
    const auto before = net->named_parameters(), buffers = net->named_buffers();
    convert_sync_batchnorm(*net, group);
    EXPECT_EQ(net->named_parameters().keys(), before.keys());
    EXPECT_EQ(net->named_buffers().keys(), buffers.keys());
    auto& layer = net->at<SyncBatchNormImpl>(1);
    EXPECT_TRUE(layer.weight.is_same(weight));
    EXPECT_TRUE(layer.running_mean.is_same(mean));
    EXPECT_FALSE(layer.weight.requires_grad());
    EXPECT_TRUE(layer.bias.requires_grad());
    EXPECT_FALSE(layer.is_training());
    EXPECT_EQ(layer.options.momentum(), 0.3);
    EXPECT_EQ(layer.options.eps(), 0.2);
    EXPECT_EQ(layer.process_group(), group);
    // The list of children and the list of layers are one: to() and train() reach what forward runs.
    net->to(at::kDouble);
    net->train();
    EXPECT_EQ(layer.running_mean.scalar_type(), at::kDouble);
    EXPECT_TRUE(layer.is_training());
  });
}

TEST(ConvertSyncBatchNorm, OfALayerWithoutTensorsHasNone) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    Sequential net(
        BatchNorm1d(torch::nn::BatchNormOptions(4).affine(false).track_running_stats(false)));
    convert_sync_batchnorm(*net, group);
    EXPECT_TRUE(net->parameters().empty());
    EXPECT_TRUE(net->buffers().empty());
    net->forward(rows_of(group->getRank()));
  });
}

TEST(ConvertSyncBatchNorm, ASecondTimeChangesTheGroup) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(4, nullptr);
    EXPECT_EQ(convert_sync_batchnorm(*layer, group), Names{""});
    auto alone = init_process_group();
    convert_sync_batchnorm(*layer, alone);
    EXPECT_EQ(layer->process_group(), alone);
    destroy_process_group(alone);
  });
}

TEST(ConvertSyncBatchNorm, ACloneSynchronisesToo) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(torch::nn::BatchNormOptions(4).momentum(1), group);
    auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(layer->clone());
    layer->forward(rows_of(group->getRank()));
    copy->forward(rows_of(group->getRank()));
    EXPECT_TRUE(copy->running_mean.equal(layer->running_mean));
    EXPECT_FALSE(copy->weight.is_same(layer->weight));
  });
}

// What a conversion must refuse: it throws, names the layer, and leaves everything as it was.
void expect_refused(torch::nn::Module& module, const std::string& name, const std::string& reason) {
  auto group = init_process_group();
  const auto before = module.modules();
  try {
    convert_sync_batchnorm(module, group);
    ADD_FAILURE() << "converted " << name;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr(name), HasSubstr(reason),
                                               HasSubstr("lockstep::SyncBatchNorm")));
  }
  EXPECT_EQ(module.modules(), before);
  for (const auto& layer : before)
    if (const auto* ours = layer->as<SyncBatchNormImpl>())
      EXPECT_EQ(ours->process_group(), nullptr);
  destroy_process_group(group);
}

TEST(ConvertSyncBatchNormRefuses, MembersOfAClass) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_module("ours", SyncBatchNorm(4, nullptr));
      register_module("in_sequential", Sequential(BatchNorm1d(4)));
      register_module("conv_net", ConvNet(10));
    }
  };
  const auto mixed = std::make_shared<Mixed>();
  expect_refused(*mixed, "conv_net.bn1", "member");
  expect_refused(*mixed, "conv_net.bn2", "BatchNorm2d(16");
}

TEST(ConvertSyncBatchNormRefuses, LayersThatSomebodyElseHolds) {
  BatchNorm1d held(4);
  Sequential net(Linear(4, 4), held);
  expect_refused(*net, "1", "outside its Sequential");
}

TEST(ConvertSyncBatchNormRefuses, ListsWhoseUsersNameTheType) {
  torch::nn::ModuleList list(BatchNorm1d(4));
  expect_refused(*list, "0", "member");
}

TEST(ConvertSyncBatchNormRefuses, DerivedClasses) {
  struct Louder : torch::nn::BatchNorm1dImpl {
    using torch::nn::BatchNorm1dImpl::BatchNorm1dImpl;
    at::Tensor forward(const at::Tensor& x) { return 2 * BatchNorm1dImpl::forward(x); }
  };
  Sequential net(std::make_shared<Louder>(4));
  expect_refused(*net, "0", "derived");
}

TEST(ConvertSyncBatchNormRefuses, ALayerByItself) {
  BatchNorm1d alone(4);
  expect_refused(*alone, "the module itself", "no place");
}

TEST(ConvertSyncBatchNormRefuses, NoGroup) {
  Sequential net(BatchNorm1d(4));
  EXPECT_THROW(convert_sync_batchnorm(*net, nullptr), UsageError);
}

}  // namespace
}  // namespace lockstep::test
