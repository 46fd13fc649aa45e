// SyncBatchNorm against torch::nn::BatchNorm on the whole global batch in one process: output,
// gradients and running statistics, for equal, uneven and empty local batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/train/sync_batch_norm.h>

#include <numeric>

#include "../support/thread_ranks.h"

namespace lockstep::test {
namespace {

using torch::nn::BatchNormOptions;
using Sizes = std::vector<std::int64_t>;

at::Tensor normal(std::uint64_t seed, at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble).to(dtype);
}

// What a layer holds and gives back after some steps.
struct Seen {
  std::vector<at::Tensor> outputs, input_gradients;  // of each step
  at::Tensor weight_gradient, bias_gradient;         // added up over the steps
  std::vector<at::Tensor> buffers;
};

struct SyncCase {
  Sizes counts;           // samples of each rank
  std::int64_t dims = 4;  // of the input
  at::ScalarType dtype = at::kDouble;
  BatchNormOptions options = BatchNormOptions(3);
  double offset = 0.5;  // of the data, so that its mean is not 0
  int steps = 3;

  int ranks() const { return static_cast<int>(counts.size()); }
  std::int64_t samples() const { return std::accumulate(counts.begin(), counts.end(), 0L); }
  std::vector<std::int64_t> shape() const {
    std::vector<std::int64_t> all{samples(), 3, 4, 2, 3};
    all.resize(static_cast<std::size_t>(dims));
    return all;
  }
  // Each sample has its own scale, so that ranks' statistics differ a great deal.
  at::Tensor inputs(int step) const {
    auto x = normal(100 + step, shape(), dtype);
    std::vector<std::int64_t> per_sample(static_cast<std::size_t>(dims), 1);
    per_sample[0] = samples();
    return x * at::arange(1, samples() + 1, dtype).reshape(per_sample) + offset;
  }
  at::Tensor output_gradients(int step) const { return normal(200 + step, shape(), dtype); }
};

template <class Layer>
Seen train(Layer& layer, const SyncCase& of, std::int64_t begin, std::int64_t count) {
  layer->to(of.dtype);
  if (of.options.affine()) {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(normal(1, {3}, of.dtype));
    layer->bias.copy_(normal(2, {3}, of.dtype));
  }
  Seen seen;
  for (int step = 0; step < of.steps; ++step) {
    const auto input = of.inputs(step).narrow(0, begin, count).clone().requires_grad_();
    const auto output = layer->forward(input);
    output.backward(of.output_gradients(step).narrow(0, begin, count));
    seen.outputs.push_back(output.detach());
    seen.input_gradients.push_back(input.grad());
  }
  if (of.options.affine()) {
    seen.weight_gradient = layer->weight.grad();
    seen.bias_gradient = layer->bias.grad();
  }
  seen.buffers = layer->buffers();
  return seen;
}

Seen train_in_one_process(const SyncCase& of) {
  if (of.dims <= 3) {
    torch::nn::BatchNorm1d layer(of.options);
    return train(layer, of, 0, of.samples());
  }
  if (of.dims == 4) {
    torch::nn::BatchNorm2d layer(of.options);
    return train(layer, of, 0, of.samples());
  }
  torch::nn::BatchNorm3d layer(of.options);
  return train(layer, of, 0, of.samples());
}

std::vector<Seen> train_on_ranks(const SyncCase& of) {
  std::vector<Seen> seen(of.counts.size());
  run_thread_ranks(of.ranks(), [&](ProcessGroupPtr group) {
    const auto rank = static_cast<std::size_t>(group->getRank());
    SyncBatchNorm layer(of.options, group);
    const auto begin = std::accumulate(of.counts.begin(), of.counts.begin() + rank, 0L);
    seen[rank] = train(layer, of, begin, of.counts[rank]);
  });
  return seen;
}

double apart(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
  const double scale = std::max(1.0, y.abs().max().item<double>());
  return (x - y).abs().max().item<double>() / scale;
}

void expect_equal(const SyncCase& of, double bound) {
  const auto whole = train_in_one_process(of);
  const auto ranks = train_on_ranks(of);
  std::vector<at::Tensor> weight_gradients, bias_gradients;
  for (int step = 0; step < of.steps; ++step) {
    std::vector<at::Tensor> outputs, gradients;
    for (const auto& rank : ranks) {
      outputs.push_back(rank.outputs[step]);
      gradients.push_back(rank.input_gradients[step]);
    }
    EXPECT_LE(apart(at::cat(outputs), whole.outputs[step]), bound) << "output, step " << step;
    EXPECT_LE(apart(at::cat(gradients), whole.input_gradients[step]), bound)
        << "input gradient, step " << step;
  }
  for (const auto& rank : ranks) {
    weight_gradients.push_back(rank.weight_gradient);
    bias_gradients.push_back(rank.bias_gradient);
    ASSERT_EQ(rank.buffers.size(), whole.buffers.size());
    for (std::size_t b = 0; b < whole.buffers.size(); ++b) {
      EXPECT_LE(apart(rank.buffers[b], whole.buffers[b]), bound) << "buffer " << b;
      EXPECT_TRUE(rank.buffers[b].equal(ranks[0].buffers[b])) << "ranks hold the same bits";
    }
  }
  if (!of.options.affine()) return;
  EXPECT_LE(apart(at::stack(weight_gradients).sum(0), whole.weight_gradient), bound);
  EXPECT_LE(apart(at::stack(bias_gradients).sum(0), whole.bias_gradient), bound);
}

constexpr double kDoubleBound = 1e-12;  // the largest distance seen was 8e-16
// About twenty roundings of 6e-8 (u) in a row: local mean and invstd, the variance recovered from
// invstd, up to four merges, invstd again, two products and sums; each at most u (1 + |mean| / std)
// relative to the largest value, with |mean| / std below 1 here. Sums over at most 300 values add
// log2(300) u. The largest distance seen was 5e-7.
constexpr double kFloatBound = 2e-6;

class Batches : public ::testing::TestWithParam<Sizes> {};
std::string sizes_name(const ::testing::TestParamInfo<Sizes>& info) {
  std::string name;
  for (const auto count : info.param) name += (name.empty() ? "" : "_") + std::to_string(count);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ranks, Batches,
                         ::testing::Values(Sizes{4, 4}, Sizes{5, 2}, Sizes{6, 0}, Sizes{0, 6},
                                           Sizes{1, 1}, Sizes{3, 3, 3}, Sizes{4, 1, 2},
                                           Sizes{0, 0, 5}, Sizes{2, 2, 2, 2}, Sizes{1, 5, 0, 3}),
                         sizes_name);

TEST_P(Batches, EqualOneBatchInDouble) {
  for (const std::int64_t dims : {2, 3, 4, 5})
    expect_equal({.counts = GetParam(), .dims = dims}, kDoubleBound);
}

TEST_P(Batches, EqualOneBatchInFloat) {
  for (const std::int64_t dims : {2, 4})
    expect_equal({.counts = GetParam(), .dims = dims, .dtype = at::kFloat}, kFloatBound);
}

TEST_P(Batches, EqualOneBatchWithEveryOption) {
  const BatchNormOptions plain(3);
  for (const auto& options :
       {BatchNormOptions(3).affine(false), BatchNormOptions(3).momentum(std::nullopt),
        BatchNormOptions(3).momentum(0.7).eps(0.1), BatchNormOptions(3).track_running_stats(false)})
    expect_equal({.counts = GetParam(), .options = options}, kDoubleBound);
}

TEST(SyncBatchNormData, FarFromZeroIsAsGoodAsOneBatch) {
  expect_equal({.counts = {5, 2, 4}, .offset = 1e3}, 1e-9);  // mean / std is 1e3: 1e3 times less
}

TEST(SyncBatchNormData, InHalfPrecisionHasFloatStatistics) {
  SyncCase of{.counts = {5, 3}};
  const auto whole = train_in_one_process(of);
  run_thread_ranks(2, [&](ProcessGroupPtr group) {
    const auto rank = group->getRank();
    SyncBatchNorm layer(of.options, group);
    {
      const torch::NoGradGuard no_grad;
      layer->weight.copy_(normal(1, {3}, at::kDouble));
      layer->bias.copy_(normal(2, {3}, at::kDouble));
    }
    const auto all = of.inputs(0).to(at::kBFloat16);
    const auto input = all.narrow(0, rank == 0 ? 0 : 5, rank == 0 ? 5 : 3);
    const auto output = layer->forward(input);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_EQ(layer->running_mean.scalar_type(), at::kFloat);
    EXPECT_LE(apart(output, whole.outputs[0].narrow(0, rank == 0 ? 0 : 5, output.size(0))), 2e-2);
  });
}

TEST(SyncBatchNormEval, UsesRunningStatisticsAndTalksToNobody) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(3, group);
    torch::nn::BatchNorm2d plain(3);
    layer->running_mean.fill_(0.25);
    plain->running_mean.fill_(0.25);
    layer->eval();
    plain->eval();
    const auto input = normal(3, {4, 3, 2, 2}, at::kFloat);
    if (group->getRank() == 0) {  // rank 1 is not there: a collective would wait for it
      EXPECT_TRUE(layer->forward(input).equal(plain->forward(input)));
      EXPECT_EQ(layer->num_batches_tracked.item<std::int64_t>(), 0);
    }
  });
}

TEST(SyncBatchNormAlone, IsBatchNormBitForBit) {
  const auto compare = [](const ProcessGroupPtr& group) {
    SyncCase of{.counts = {7}, .dtype = at::kFloat};
    SyncBatchNorm layer(of.options, group);
    const auto ours = train(layer, of, 0, 7), theirs = train_in_one_process(of);
    for (int step = 0; step < of.steps; ++step) {
      EXPECT_TRUE(ours.outputs[step].equal(theirs.outputs[step]));
      EXPECT_TRUE(ours.input_gradients[step].equal(theirs.input_gradients[step]));
    }
    EXPECT_TRUE(ours.weight_gradient.equal(theirs.weight_gradient));
    for (std::size_t b = 0; b < 3; ++b) EXPECT_TRUE(ours.buffers[b].equal(theirs.buffers[b]));
  };
  compare(nullptr);
  run_thread_ranks(1, compare);
}

TEST(SyncBatchNormGroups, SynchroniseEachByItself) {
  const TemporaryFolder folder("lockstep-groups");
  std::vector<at::Tensor> means(4);
  run_thread_ranks(4, [&](ProcessGroupPtr world) {
    const int rank = world->getRank();
    auto half = init_process_group(
        {.init_method = "file://" + (folder.path() / std::to_string(rank / 2)).string(),
         .rank = rank % 2,
         .world_size = 2,
         .local_rank = rank});
    barrier(*half);
    SyncBatchNorm layer(BatchNormOptions(3).momentum(1), half);
    layer->forward(at::full({2, 3}, rank) + at::eye(2, 3));
    means[static_cast<std::size_t>(rank)] = layer->running_mean;
    barrier(*world);
    destroy_process_group(half);
  });
  EXPECT_TRUE(means[0].equal(means[1]));
  EXPECT_TRUE(means[2].equal(means[3]));
  EXPECT_LE(apart(means[2] - means[0], at::full({3}, 2.0)), 1e-6);
}

TEST(SyncBatchNormInput, WithoutGradientNeedsOneCollective) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(3, group);
    const auto before = group->getDefaultBackend()->getSequenceNumberForGroup();
    layer->forward(normal(4, {4, 3}, at::kFloat)).sum().backward();
    EXPECT_EQ(group->getDefaultBackend()->getSequenceNumberForGroup(), before + 1);
    EXPECT_TRUE(layer->weight.grad().defined());
  });
}

TEST(SyncBatchNormEmpty, OnAllRanksLearnsNothing) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(3, group);
    EXPECT_EQ(layer->forward(at::zeros({0, 3, 2})).sizes(), (std::vector<std::int64_t>{0, 3, 2}));
    EXPECT_TRUE(layer->running_mean.equal(at::zeros(3)));
    EXPECT_TRUE(layer->running_var.equal(at::ones(3)));
  });
}

TEST(SyncBatchNormErrors, NameWhatIsWrongBeforeAnyCollective) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(3, group);
    if (group->getRank() == 1) return;  // rank 0 must not wait for it
    EXPECT_THROW(layer->forward(at::zeros({4})), UsageError);
    try {
      layer->forward(at::zeros({4, 5}));
      ADD_FAILURE() << "5 channels in a layer made for 3";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("3 channels"),
                                                 ::testing::HasSubstr("has 5")));
    }
  });
}

TEST(SyncBatchNormErrors, OneValueInAllIsRefusedOnEveryRank) {
  const auto thrown = try_thread_ranks({.world_size = 2}, [](ProcessGroupPtr group) {
    SyncBatchNorm(3, group)->forward(at::zeros({group->getRank(), 3}));
  });
  for (const auto& error : thrown) EXPECT_THROW(std::rethrow_exception(error), UsageError);
}

TEST(SyncBatchNormErrors, BackwardOfBackwardIsRefused) {
  run_thread_ranks(2, [](ProcessGroupPtr group) {
    SyncBatchNorm layer(3, group);
    const auto input = normal(5, {4, 3}, at::kFloat).requires_grad_();
    const auto output = layer->forward(input).square().sum();
    EXPECT_THROW(torch::autograd::grad({output}, {input}, {}, true, true), Error);
  });
}

// The kind of train-mode-differs-across-ranks that waits: it ends at the group's timeout.
TEST(SyncBatchNormErrors, ARankInEvalModeLeavesTheOthersToTheTimeout) {
  const auto thrown = try_thread_ranks({.world_size = 2, .timeout = std::chrono::milliseconds(500)},
                                       [](ProcessGroupPtr group) {
                                         SyncBatchNorm layer(3, group);
                                         layer->train(group->getRank() != 0);
                                         layer->forward(normal(6, {4, 3}, at::kFloat));
                                         if (group->getRank() == 0)
                                           barrier(*group);  // alive, and elsewhere
                                       });
  EXPECT_THROW(std::rethrow_exception(thrown[1]), CollectiveError);
}

}  // namespace
}  // namespace lockstep::test
