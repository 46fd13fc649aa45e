// Join: ranks with unequal numbers of batches, against one process that does the same by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/joined_optimizer.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/join.h>
#include <lockstep/train/sync_batch_norm.h>

#include <atomic>
#include <type_traits>

#include "../support/ddp_models.h"
#include "../support/refusal.h"

namespace lockstep::test {
namespace {

class JoinRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, JoinRanks, ::testing::Values(2, 3, 4),
                         [](const auto& test) { return std::to_string(test.param); });

template <class Optimizer>
Optimizer make_optimizer(std::vector<at::Tensor> parameters) {
  if constexpr (std::is_same_v<Optimizer, torch::optim::SGD>)
    return Optimizer(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
  else
    return Optimizer(std::move(parameters));
}

constexpr int kMost = 4;  // batches of rank 0; each further rank has one fewer

// One process: in each step the mean over the ranks that have a batch, or over all of them.
Mlp train_alone(int ranks, bool divide_by_all) {
  auto model = make_mlp();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kMost; ++step) {
    optimizer.zero_grad();
    const int there = std::min(ranks, kMost - step);
    for (int rank = 0; rank < there; ++rank) {
      const auto loss = model->forward(inputs_of(rank, step)).square().mean();
      (loss / (divide_by_all ? ranks : there)).backward();
    }
    optimizer.step();
  }
  return model;
}

TEST_P(JoinRanks, TrainsAsOneProcessOverTheBatchesThatAreThere) {
  const int ranks = GetParam();
  for (const bool divide_by_all : {true, false}) {
    const auto alone = train_alone(ranks, divide_by_all);
    run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
      const int rank = group->getRank();
      auto model = DistributedDataParallel(make_mlp(), group, {.bucket_cap_mb = 0.0001});
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const auto shadowed = join({model.engine()},
                                 [&] {
                                   for (int step = 0; step < kMost - rank; ++step) {
                                     optimizer.zero_grad();
                                     model(inputs_of(rank, step)).square().mean().backward();
                                     optimizer.step();
                                   }
                                 },
                                 {.divide_by_initial_world_size = divide_by_all});
      EXPECT_EQ(shadowed, rank);
      EXPECT_TRUE(close(model.module()->parameters(), alone->parameters()))
          << "rank " << rank << ", divided by " << (divide_by_all ? "all" : "those there");
    });
  }
}

TEST_P(JoinRanks, AfterwardsGradientsAreTheMeanOverAllRanksAgain) {
  const int ranks = GetParam();
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto model = DistributedDataParallel(make_mlp(), group);
    const auto backward = [&] {
      model.module()->zero_grad();
      model(inputs_of(rank)).square().mean().backward();
    };
    // Only rank 0 has a batch: the divisor is 1, and must not stay.
    join({model.engine()},
         [&] {
           if (rank == 0) backward();
         },
         {.divide_by_initial_world_size = false});
    const auto entered = [&] { return group->getDefaultBackend()->getSequenceNumberForGroup(); };
    backward();  // rebuilds the buckets, if that is still to be done
    const auto before = entered();
    backward();
    EXPECT_EQ(entered() - before, 1U) << "nothing but the gradients' all-reduce";
    const auto expected = mean_gradients(ranks, [](int of_rank) {
      auto plain = make_mlp();
      plain->forward(inputs_of(of_rank)).square().mean().backward();
      return gradients_of(*plain);
    });
    EXPECT_TRUE(close(gradients_of(*model.module()), expected));
  });
}

TEST_P(JoinRanks, BuffersComeFromARankThatIsNotDone) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    const int rank = group->getRank(), last = group->getSize() - 1;
    auto model = DistributedDataParallel(seeded(3, [] { return ConvNet(10); }), group);
    const auto buffer = [&] { return model.module()->bn1->num_batches_tracked.item<int>(); };
    join({model.engine()}, [&] {
      for (int step = 0; step < (rank == last ? 3 : 1); ++step)
        model(torch::ones({2, 1, 28, 28})).square().mean().backward();
    });
    EXPECT_EQ(buffer(), 3) << "the last rank's count, on rank " << rank;
  });
}

TEST_P(JoinRanks, ForwardsWithoutGradientAreShadowedToo) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group, {.bucket_cap_mb = 0.0001});
    const auto shadowed = join({model.engine()}, [&] {
      if (group->getRank() != 0) return;
      for (int round = 0; round < 3; ++round) {
        model(inputs_of(0, round)).square().mean().backward();
        const torch::NoGradGuard no_grad;
        model(inputs_of(0, round));
      }
    });
    EXPECT_EQ(shadowed, group->getRank() == 0 ? 0 : 6);
  });
}

TEST_P(JoinRanks, NobodyUsesAParameterItKeepsNoGradient) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(seeded(3, [] { return Branches(); }), group,
                                         {.find_unused_parameters = true});
    join({model.engine()}, [&] {
      const int rank = group->getRank();
      for (int step = 0; step < (rank == 0 ? 3 : 1); ++step) {
        model.module()->zero_grad();
        model(inputs_of(rank, step), step == 0).square().mean().backward();
      }
      if (rank != 0) return;
      EXPECT_FALSE(model.module()->left->weight.grad().defined());
      EXPECT_TRUE(model.module()->right->weight.grad().defined());
    });
  });
}

TEST_P(JoinRanks, EarlyTerminationThrowsOnEveryRank) {
  const int ranks = GetParam();
  std::atomic<int> batches = 0;
  const auto thrown = try_thread_ranks({.world_size = ranks}, [&](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    join({model.engine()},
         [&] {
           for (int step = 0; step < (group->getRank() == 1 ? 2 : 5); ++step) {
             model(inputs_of(group->getRank(), step)).square().mean().backward();
             ++batches;
           }
         },
         {.throw_on_early_termination = true});
  });
  EXPECT_EQ(batches, 2 * ranks) << "as many on each rank as the one that has fewest";
  for (int rank = 0; rank < ranks; ++rank) try {
      ASSERT_TRUE(thrown[static_cast<std::size_t>(rank)]) << "rank " << rank;
      std::rethrow_exception(thrown[static_cast<std::size_t>(rank)]);
    } catch (const UnevenInputs& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank " + std::to_string(rank)));
    }
}

TEST_P(JoinRanks, EarlyTerminationLeavesEvenInputsAlone) {
  run_thread_ranks(GetParam(), [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    const auto shadowed =
        join({model.engine()},
             [&] {
               for (int step = 0; step < 2; ++step)
                 model(inputs_of(group->getRank(), step)).square().mean().backward();
             },
             {.throw_on_early_termination = true});
    EXPECT_EQ(shadowed, 0);
  });
}

// Two epochs in which the last rank has a batch more, with an optimizer that remembers.
template <class Optimizer>
std::vector<std::vector<at::Tensor>> train_two_epochs(int ranks, bool joins_optimizer) {
  std::vector<std::vector<at::Tensor>> parameters(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto model = DistributedDataParallel(make_mlp(), group);
    auto optimizer = make_optimizer<Optimizer>(model.parameters());
    JoinedOptimizer joined(optimizer, group);
    std::vector<std::reference_wrapper<Joinable>> joinables{model.engine()};
    if (joins_optimizer) joinables.push_back(joined);
    for (int epoch = 0; epoch < 2; ++epoch)
      join(joinables, [&] {
        for (int step = 0; step < (rank + 1 == ranks ? 3 : 2); ++step) {
          optimizer.zero_grad();
          model(inputs_of(rank, 3 * epoch + step)).square().mean().backward();
          optimizer.step();
          if (epoch == 1 && step == 1)
            for (const auto& parameter : model.parameters())
              parameters[static_cast<std::size_t>(rank)].push_back(parameter.detach().clone());
        }
      });
  });
  return parameters;
}

TEST_P(JoinRanks, AnOptimizerThatIsJoinedTooKeepsReplicasEqual) {
  for (const auto& train : {train_two_epochs<Adam>, train_two_epochs<torch::optim::SGD>}) {
    const auto with = train(GetParam(), true);
    for (const auto& replica : with) EXPECT_TRUE(identical(replica, with.front()));
    // The limit that the header names.
    const auto without = train(GetParam(), false);
    EXPECT_FALSE(identical(without.front(), without.back()));
  }
}

// Counts instead of DDP: who calls what, in which order, and how often.
class Counter : public Joinable {
 public:
  explicit Counter(ProcessGroupPtr group) : group_(std::move(group)) {}
  void iterate() {
    notify_join_context();
    reduce(1);
  }
  const ProcessGroupPtr& join_process_group() const override { return group_; }
  void main_hook() override { reduce(0); }
  void post_hook(bool is_last_joiner) override { last = is_last_joiner; }

  double sum = 0;
  std::optional<bool> last;

 private:
  void reduce(double value) {
    auto all = torch::full({1}, value, torch::kDouble);
    all_reduce(*group_, all);
    sum += all.item<double>();
  }
  ProcessGroupPtr group_;
};

TEST_P(JoinRanks, AJoinableOfYourOwnIsShadowedBesideTheModel) {
  const int ranks = GetParam();
  run_thread_ranks(ranks, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto model = DistributedDataParallel(make_mlp(), group);
    Counter counter(group);
    join({model.engine(), counter}, [&] {
      for (int step = 0; step < 2 + rank; ++step) {
        model(inputs_of(rank, step)).square().mean().backward();
        counter.iterate();
      }
    });
    EXPECT_EQ(counter.sum, ranks * 2 + ranks * (ranks - 1) / 2) << "every rank saw every iteration";
    EXPECT_EQ(counter.last, rank == ranks - 1);
  });
}

TEST(Join, RefusesWhatItCannotShadow) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    using ::testing::HasSubstr;
    const auto nothing = [] {};
    EXPECT_THAT(refusal<UsageError>([&] { join({}, nothing); }), HasSubstr("nothing to join"));

    auto static_graph = DistributedDataParallel(make_mlp(), group, {.static_graph = true});
    EXPECT_THAT(refusal<UsageError>([&] { join({static_graph.engine()}, nothing); }),
                HasSubstr("static_graph"));

    torch::nn::Sequential layers(torch::nn::Linear(4, 4),
                                 SyncBatchNorm(torch::nn::BatchNormOptions(4), group));
    auto sync_bn = DistributedDataParallel(layers, group);
    EXPECT_THAT(refusal<UsageError>([&] { join({sync_bn.engine()}, nothing); }),
                HasSubstr("1 is a SyncBatchNorm"));
    sync_bn.eval();  // talks to nobody
    EXPECT_EQ(refusal<UsageError>([&] { join({sync_bn.engine()}, nothing); }), "");
  });
}

TEST(Join, AnExceptionComesOutAndIsForgotten) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    auto model = DistributedDataParallel(make_mlp(), group);
    EXPECT_THROW(join({model.engine()}, [] { throw std::out_of_range("mine"); }),
                 std::out_of_range);
    const auto before = group->getDefaultBackend()->getSequenceNumberForGroup();
    model(inputs_of(group->getRank())).square().mean().backward();
    EXPECT_EQ(group->getDefaultBackend()->getSequenceNumberForGroup() - before, 1U);
    EXPECT_EQ(join({model.engine()}, [] {}, {.enable = false}), 0);
    EXPECT_EQ(group->getDefaultBackend()->getSequenceNumberForGroup() - before, 1U);
  });
}

}  // namespace
}  // namespace lockstep::test
