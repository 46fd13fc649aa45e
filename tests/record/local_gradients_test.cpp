// Sums of local gradients: exact where a sum is known, and without a copy of what is large.
#include <gtest/gtest.h>
#include <lockstep/record/local_gradients.h>
#include <lockstep/record/probes.h>

#include <cmath>
#include <limits>

namespace lockstep::record {
namespace {

constexpr std::int64_t kSmall = 1000, kLarge = 10'000'000;  // 40 MB: more than is kept
static_assert(kLarge * sizeof(float) > LocalGradients::kMostKept);

struct Trained {
  explicit Trained(std::int64_t size, bool values = true)
      : parameter(torch::zeros({size}, torch::requires_grad())) {
    local.assign(1);
    parameter.register_hook(
        [this, values](const at::Tensor& gradient) { local.add(0, parameter, gradient, values); });
  }
  void backward(const at::Tensor& gradient) { (parameter * gradient).sum().backward(); }
  trace::Summary summary() const { return local.summaries().front(); }

  LocalGradients local;
  at::Tensor parameter;
};

at::Tensor gradient(std::int64_t size, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({size});
}

void expect_same(const trace::Summary& a, const trace::Summary& b) {
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.sketch, b.sketch);
}

TEST(LocalGradients, OfOneBackwardAndOfSeveralAreWhatGradHolds) {
  for (const auto size : {kSmall, kLarge}) {
    Trained trained(size);
    EXPECT_TRUE(trained.summary().sketch.empty());
    EXPECT_FALSE(trained.local.is_not_zero(0));
    for (std::uint64_t part = 0; part < 3; ++part) {
      trained.backward(gradient(size, part));
      expect_same(trained.summary(), summarize(trained.parameter.grad()));
    }
    EXPECT_TRUE(trained.local.is_not_zero(0));
    trained.local.forget();
    EXPECT_TRUE(trained.summary().sketch.empty());
  }
}

TEST(LocalGradients, OfSixteenBitsAreRoundedAsGradIs) {
  Trained trained(1);
  trained.parameter = torch::zeros({2 * kLarge}, torch::kBFloat16).requires_grad_();
  trained.parameter.register_hook(
      [&](const at::Tensor& gradient) { trained.local.add(0, trained.parameter, gradient, true); });
  for (std::uint64_t part = 0; part < 3; ++part)
    trained.backward(gradient(2 * kLarge, part).to(torch::kBFloat16));
  expect_same(trained.summary(), summarize(trained.parameter.grad()));
}

TEST(LocalGradients, OfWhichGradWasReducedMeanwhileAreKnownByTheirProjections) {
  for (const auto size : {kSmall, kLarge}) {
    const auto a = gradient(size, 1), b = gradient(size, 2);
    const auto sum = summarize(a + b);
    std::vector<trace::Summary> of_two_runs;
    for (int run = 0; run < 2; ++run) {
      Trained trained(size);
      trained.backward(a);
      trained.parameter.mutable_grad() *= 0.5;
      trained.backward(b);
      of_two_runs.push_back(trained.summary());
    }
    const auto& found = of_two_runs[0];
    expect_same(found, of_two_runs[1]);
    if (size == kSmall) expect_same(found, sum);
    for (std::size_t p = 0; p < sum.sketch.size(); ++p)
      EXPECT_NEAR(found.sketch[p], sum.sketch[p], 1e-6 * sum.norm);
    EXPECT_GT(found.norm, 0);
  }
}

TEST(LocalGradients, OfAStepThatIsNotProbedTellWhetherTheyAreFinite) {
  for (const double value : {1.0, 65504.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    Trained trained(kLarge, false);
    trained.backward(torch::full({kLarge}, 0.5f));
    auto other = torch::zeros({kLarge});
    other[kLarge / 2] = value;
    trained.backward(other);
    const auto found = trained.summary();
    EXPECT_EQ(std::isfinite(found.norm), std::isfinite(value)) << value;
    ASSERT_EQ(found.sketch.size(), static_cast<std::size_t>(trace::kSketch));
    for (const double projection : found.sketch) EXPECT_TRUE(std::isnan(projection));
    EXPECT_TRUE(trained.local.is_not_zero(0));
  }
}

TEST(LocalGradients, OfSparseAndDenseBackwardsAreSummed) {
  Trained trained(1);
  trained.parameter = torch::zeros({kSmall, 4}, torch::requires_grad());
  const auto dense = gradient(4 * kSmall, 1).view({kSmall, 4});
  auto rows = torch::zeros({kSmall, 4});
  rows.slice(0, 3, 7).fill_(2);
  for (const auto& each : {rows.to_sparse(1), rows.to_sparse(1), dense, rows.to_sparse(1)})
    trained.local.add(0, trained.parameter, each, true);
  expect_same(trained.summary(), summarize(rows + rows + dense + rows));
}

}  // namespace
}  // namespace lockstep::record
