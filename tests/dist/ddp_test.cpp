// DistributedDataParallel: whose gradients, whose parameters. The expected gradients are the mean
// over ranks of plain backward passes without any DDP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>

#include "../support/ddp_models.h"

namespace lockstep::test {
namespace {

class Ddp : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Ddp, ::testing::Values(2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(Ddp, GradientsAreTheMeanOverRanks) {
  const int ranks = GetParam();
  const auto expected = mean_gradients(ranks, [](int rank) {
    auto model = make_mlp();
    model->forward(inputs_of(rank)).square().mean().backward();
    return gradients_of(*model);
  });
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    // Three times: the second iteration runs on rebuilt buckets.
    for (int round = 0; round < 3; ++round) {
      model.module()->zero_grad();
      model(inputs_of(group->getRank())).square().mean().backward();
      EXPECT_TRUE(close(gradients_of(*model.module()), expected)) << "round " << round;
    }
  });
}

TEST_P(Ddp, ConstructionMakesRanksEqualToRankZero) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const auto seed = static_cast<std::uint64_t>(group->getRank());
    const auto net = seeded(seed, [&] {
      auto made = ConvNet(10);
      made->bn1->running_mean.fill_(static_cast<double>(seed));
      return made;
    });
    net->fc->weight.requires_grad_(false);  // frozen parameters are broadcast too
    const auto model = DistributedDataParallel(net, group);
    const auto rank0 = seeded(0, [] { return ConvNet(10); });
    EXPECT_TRUE(identical(net->parameters(), rank0->parameters()));
    EXPECT_TRUE(identical(net->buffers(), rank0->buffers()));
  });
}

TEST_P(Ddp, WithoutInitSyncRanksStayAsTheyAre) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const auto seed = static_cast<std::uint64_t>(group->getRank());
    auto net = seeded(seed, [] { return Mlp(4, 6, 3); });
    const auto model = DistributedDataParallel(net, group, {.init_sync = false});
    EXPECT_TRUE(
        identical(net->parameters(), seeded(seed, [] { return Mlp(4, 6, 3); })->parameters()));
  });
}

TEST_P(Ddp, FrozenParametersGetNoGradient) {
  const int ranks = GetParam();
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    auto net = make_mlp();
    net->fc1->weight.requires_grad_(false);
    auto model = DistributedDataParallel(net, group);
    for (int round = 0; round < 2; ++round) {
      net->zero_grad();
      model(inputs_of(group->getRank())).square().mean().backward();
    }
    EXPECT_FALSE(net->fc1->weight.grad().defined());
    const auto expected = mean_gradients(ranks, [](int rank) {
      auto plain = make_mlp();
      plain->fc1->weight.requires_grad_(false);
      plain->forward(inputs_of(rank)).square().mean().backward();
      return gradients_of(*plain);
    });
    EXPECT_TRUE(close(gradients_of(*net), expected));
  });
}

TEST_P(Ddp, SharedParametersAreReducedOnce) {
  const int ranks = GetParam();
  const auto make = [] { return seeded(3, [] { return Shared(); }); };
  const auto expected = mean_gradients(ranks, [&](int rank) {
    auto net = make();
    net->forward(inputs_of(rank)).square().mean().backward();
    return gradients_of(*net);
  });
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make(), group);
    for (int round = 0; round < 2; ++round) {
      model.module()->zero_grad();
      model(inputs_of(group->getRank())).square().mean().backward();
      EXPECT_TRUE(close(gradients_of(*model.module()), expected));
    }
  });
}

TEST_P(Ddp, TakesSeveralInputsAndGivesATuple) {
  const int ranks = GetParam();
  const auto make = [] { return seeded(3, [] { return TwoHeads(); }); };
  const auto loss = [](const std::tuple<at::Tensor, at::Tensor>& out) {
    return std::get<0>(out).square().mean() + std::get<1>(out).abs().mean();
  };
  const auto expected = mean_gradients(ranks, [&](int rank) {
    auto net = make();
    loss(net->forward(inputs_of(rank), inputs_of(rank, 1))).backward();
    return gradients_of(*net);
  });
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    for (const bool find_unused : {false, true}) {
      auto model = DistributedDataParallel(make(), group, {.find_unused_parameters = find_unused});
      const int rank = group->getRank();
      loss(model(inputs_of(rank), inputs_of(rank, 1))).backward();
      EXPECT_TRUE(close(gradients_of(*model.module()), expected));
    }
  });
}

TEST_P(Ddp, NoSyncAccumulatesLocallyAndTheNextBackwardReducesTheSum) {
  const int ranks = GetParam();
  const auto local = [](int rank, int steps) {
    auto net = make_mlp();
    for (int step = 0; step < steps; ++step)
      net->forward(inputs_of(rank, step)).square().mean().backward();
    return gradients_of(*net);
  };
  const auto expected = mean_gradients(ranks, [&](int rank) { return local(rank, 3); });
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    for (const bool view : {false, true}) {
      auto model = DistributedDataParallel(make_mlp(), group, {.gradient_as_bucket_view = view});
      {
        const NoSync no_sync(model.engine());
        for (int step = 0; step < 2; ++step)
          model(inputs_of(rank, step)).square().mean().backward();
      }
      EXPECT_TRUE(model.engine().require_sync());
      EXPECT_TRUE(close(gradients_of(*model.module()), local(rank, 2)));
      model(inputs_of(rank, 2)).square().mean().backward();
      EXPECT_TRUE(close(gradients_of(*model.module()), expected));
    }
  });
}

TEST_P(Ddp, UnusedParametersNeedToBeLookedFor) {
  const int ranks = GetParam();
  const auto make = [] { return seeded(3, [] { return Branches(); }); };
  // Rank 0 goes left, all others right: each branch is used somewhere.
  const auto expected = mean_gradients(ranks, [&](int rank) {
    auto net = make();
    net->forward(inputs_of(rank), rank == 0).square().mean().backward();
    return gradients_of(*net);
  });
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make(), group, {.find_unused_parameters = true});
    const int rank = group->getRank();
    for (int round = 0; round < 3; ++round) {
      model.module()->zero_grad();
      model(inputs_of(rank), rank == 0).square().mean().backward();
      EXPECT_TRUE(close(gradients_of(*model.module()), expected)) << "round " << round;
    }
    // Now all go right: the left branch is used nowhere, and has no gradient at all.
    model.module()->zero_grad();
    model(inputs_of(rank), false).square().mean().backward();
    EXPECT_FALSE(model.module()->left->weight.grad().defined());
    EXPECT_TRUE(model.module()->right->weight.grad().defined());
  });
}

TEST(DdpUnused, WithoutLookingTheNextForwardNamesTheFault) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(seeded(3, [] { return Branches(); }), group);
    model(inputs_of(group->getRank()), true).square().mean().backward();
    try {
      model(inputs_of(group->getRank()), true);
      ADD_FAILURE() << "an unfinished reduction went unnoticed";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("finished reduction in the prior iteration"));
    }
  });
}

TEST(DdpUnused, AnOutputTheLossDoesNotUseLeavesItsHeadWithoutGradient) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(seeded(3, [] { return TwoHeads(); }), group,
                                         {.find_unused_parameters = true});
    const int rank = group->getRank();
    for (int round = 0; round < 2; ++round) {
      model.module()->zero_grad();
      std::get<0>(model(inputs_of(rank), inputs_of(rank, 1))).square().mean().backward();
    }
    EXPECT_TRUE(model.module()->a->weight.grad().defined());
    EXPECT_FALSE(model.module()->b->weight.grad().defined());
  });
}

TEST_P(Ddp, BuffersFollowRankZeroOnlyWhenBroadcast) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const int rank = group->getRank();
    for (const bool broadcast_buffers : {true, false}) {
      auto net = seeded(5, [] { return ConvNet(10); });
      auto model = DistributedDataParallel(net, group, {.broadcast_buffers = broadcast_buffers});
      for (int step = 0; step < 2; ++step)
        model(inputs_of(rank, step, 784)).square().mean().backward();
      // Batches differ, so running means do, until the next forward takes rank 0's. In eval mode
      // that forward changes nothing by itself.
      model.eval();
      {
        const torch::NoGradGuard no_grad;
        model(inputs_of(rank, 2, 784));
      }
      const auto means = all_gather(*group, net->bn1->running_mean);
      for (std::size_t other = 1; other < means.size(); ++other)
        EXPECT_EQ(means[0].equal(means[other]), broadcast_buffers) << "rank " << other;
    }
  });
}

TEST(DdpErrors, AModuleWithoutTrainableParametersIsRefused) {
  auto group = init_process_group();
  auto net = make_mlp();
  for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
  EXPECT_THROW(DistributedDataParallel(net, group), UsageError);
}

}  // namespace
}  // namespace lockstep::test
