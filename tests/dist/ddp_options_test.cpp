// DDP's options: each must leave the gradients as they are, or change them in the way it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/train/comm_hooks.h>

#include "../support/ddp_models.h"

namespace lockstep::test {
namespace {

// Gradients after each of three steps of plain SGD on this rank, flattened.
Gradients three_steps(const ProcessGroupPtr& group, const DdpOptions& options,
                      const std::function<void(DdpEngine&)>& prepare = {}) {
  auto model = DistributedDataParallel(seeded(7, [] { return Mlp(4, 300, 3); }), group, options);
  if (prepare) prepare(model.engine());
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Gradients all;
  for (int step = 0; step < 3; ++step) {
    model.module()->zero_grad();
    model(inputs_of(group->getRank(), step)).square().mean().backward();
    for (auto& gradient : gradients_of(*model.module())) all.push_back(gradient);
    optimizer.step();
  }
  return all;
}

TEST(DdpOptionsTest, BucketViewsDoNotChangeABit) {
  run_thread_ranks(3, [](ProcessGroupPtr group) {
    EXPECT_TRUE(
        identical(three_steps(group, {}), three_steps(group, {.gradient_as_bucket_view = true})));
  });
}

// On two ranks a sum has one order only, whichever bucket it is in. On three, Gloo's ring begins
// where an element lies in its bucket, so other buckets round differently.
TEST(DdpOptionsTest, OtherBucketsDoNotChangeABitOnTwoRanks) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    const auto plain = three_steps(group, {});
    for (const double cap : {-1.0, 0.001})
      for (const bool find_unused : {false, true})
        for (const bool static_graph : {false, true}) {
          const DdpOptions options{.bucket_cap_mb = cap,
                                   .find_unused_parameters = find_unused,
                                   .static_graph = static_graph};
          EXPECT_TRUE(identical(plain, three_steps(group, options)))
              << cap << " " << find_unused << " " << static_graph;
        }
  });
}

// Each rank's gradients, with the group's backend as it is or decorated.
std::vector<Gradients> by_rank(const ThreadRanksOptions& options) {
  std::vector<Gradients> result(static_cast<std::size_t>(options.world_size));
  run_thread_ranks(options, [&](ProcessGroupPtr group) {
    result[static_cast<std::size_t>(group->getRank())] =
        three_steps(group, {.find_unused_parameters = true});
  });
  return result;
}

TEST(DdpOptionsTest, ADecoratedBackendDoesNotChangeABit) {
  const TemporaryFolder folder("lockstep-traces");
  const auto plain = by_rank({.world_size = 3});
  const auto observed =
      by_rank({.world_size = 3, .decorate = [&](BackendPtr backend, const StorePtr&) {
                 const trace::Participant participant{backend->getRank(), 3};
                 return record::observe(
                     backend, std::make_shared<trace::Writer>(folder.path(), participant));
               }});
  for (std::size_t rank = 0; rank < plain.size(); ++rank)
    EXPECT_TRUE(identical(plain[rank], observed[rank])) << "rank " << rank;
}

TEST(DdpOptionsTest, ABucketOfLessThanAByteIsRefused) {
  auto group = init_process_group();
  EXPECT_THROW(DistributedDataParallel(Mlp(4, 6, 3), group, {.bucket_cap_mb = 0}), UsageError);
}

TEST(DdpOptionsTest, GradientsAreViewsOfBuckets) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group, {.gradient_as_bucket_view = true});
    model(inputs_of(group->getRank())).square().mean().backward();
    const auto parameters = model.parameters();
    // All four gradients lie in one storage.
    for (const auto& parameter : parameters)
      EXPECT_TRUE(parameter.grad().is_alias_of(parameters.front().grad()));
    torch::optim::SGD optimizer(parameters, 0.1);
    EXPECT_THROW(optimizer.zero_grad(), c10::Error);  // as the header warns
    model.module()->zero_grad();
    EXPECT_FALSE(parameters.front().grad().defined());
    model(inputs_of(group->getRank())).square().mean().backward();
    for (const auto& parameter : parameters) parameter.grad().zero_();
    EXPECT_EQ(parameters.front().grad().abs().max().item<float>(), 0);
  });
}

TEST(DdpOptionsTest, AStaticGraphFindsUnusedParametersByItself) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(seeded(3, [] { return Branches(); }), group,
                                         {.static_graph = true});
    auto reference = DistributedDataParallel(seeded(3, [] { return Branches(); }), group,
                                             {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      for (auto* ddp : {&model, &reference}) {
        ddp->module()->zero_grad();
        (*ddp)(inputs_of(group->getRank(), step), true).square().mean().backward();
      }
      EXPECT_TRUE(identical({model.module()->trunk->weight.grad()},
                            {reference.module()->trunk->weight.grad()}));
      EXPECT_TRUE(identical({model.module()->left->weight.grad()},
                            {reference.module()->left->weight.grad()}));
    }
  });
}

TEST(CommHooks, TheBuiltInAllReduceIsTheDefault) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    const auto plain = three_steps(group, {});
    EXPECT_TRUE(identical(plain, three_steps(group, {}, [](DdpEngine& engine) {
                            engine.register_builtin_comm_hook(c10d::BuiltinCommHookType::ALLREDUCE);
                          })));
  });
}

TEST(CommHooks, Fp16LosesPrecisionAndNothingElse) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    const auto plain = three_steps(group, {});
    const auto half = three_steps(group, {}, [](DdpEngine& engine) {
      engine.register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
    });
    EXPECT_FALSE(identical(plain, half));
    ASSERT_EQ(plain.size(), half.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_LT((plain[i] - half[i]).abs().max().item<float>(),
                2e-3 * plain[i].abs().max().item<float>() + 1e-6);
  });
}

// Gradients are rounded to 8 significant bits in each of the three steps. Three ranks: with two, a division by a fixed
// two would pass.
TEST(CommHooks, Bf16LosesPrecisionAndNothingElse) {
  run_thread_ranks(3, [](ProcessGroupPtr group) {
    const auto plain = three_steps(group, {});
    const auto rounded = three_steps(group, {}, [&](DdpEngine& engine) {
      engine.register_comm_hook(bf16_compress_hook(group));
    });
    EXPECT_FALSE(identical(plain, rounded));
    ASSERT_EQ(plain.size(), rounded.size());
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_LT((plain[i] - rounded[i]).abs().max().item<float>(),
                1e-2 * plain[i].abs().max().item<float>() + 1e-6);
  });
}

// Replaces the sum by rank 0's gradient times two: easy to tell from a mean.
class TwiceRankZero : public c10d::CppCommHookInterface<ProcessGroupPtr> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> tensors{bucket.getBufferRef()};
    return state_->broadcast(tensors)->getFuture()->then(
        [](c10::ivalue::Future& sent) {
          const auto received = sent.value();
          const auto tensor =
              received.isTensorList() ? received.toTensorVector().at(0) : received.toTensor();
          return c10::IValue(tensor.mul(2));
        },
        c10::TensorType::get());
  }
};

TEST(CommHooks, YourOwnDecidesWhatIsCommunicated) {
  const auto expected = mean_gradients(1, [](int rank) {
    auto net = seeded(7, [] { return Mlp(4, 300, 3); });
    (2 * net->forward(inputs_of(rank)).square().mean()).backward();
    return gradients_of(*net);
  });
  run_thread_ranks(2, [&](ProcessGroupPtr group) {
    const auto got = three_steps(group, {}, [&](DdpEngine& engine) {
      engine.register_comm_hook(std::make_unique<TwiceRankZero>(group));
    });
    const Gradients first(got.begin(), got.begin() + 4);
    EXPECT_TRUE(close(first, expected));
  });
}

TEST(CommHooks, TwoAreRefused) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    model.engine().register_builtin_comm_hook(c10d::BuiltinCommHookType::ALLREDUCE);
    EXPECT_THROW(
        model.engine().register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS),
        c10::Error);
  });
}

}  // namespace
}  // namespace lockstep::test
