// Fashion-MNIST's known figures, made-up data, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/train/dataset.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "../support/refusal.h"
#include "../support/variable.h"
#include "gzip.h"

namespace lockstep {
namespace {

using std::filesystem::path;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A folder of Fashion-MNIST's form with `count` blank images and the labels given.
void write_split(const path& folder, std::uint32_t count, const std::string& labels) {
  write_file(folder / "train-images-idx3-ubyte.gz",
             gzip(header({0x803, count, 28, 28}) + std::string(count * 784, '\0')));
  write_file(folder / "train-labels-idx1-ubyte.gz",
             gzip(header({0x801, static_cast<std::uint32_t>(labels.size())}) + labels));
}

std::string fashion_mnist_problem(const path& folder) {
  return refusal([&] { fashion_mnist(folder, Split::train, 0); });
}

TEST(FashionMnist, RefusesLabelsThatDoNotFitTheImages) {
  const TemporaryFolder folder("mnist");
  write_split(folder.path(), 3, std::string("\1\2", 2));
  EXPECT_THAT(fashion_mnist_problem(folder.path()),
              AllOf(StartsWith((folder.path() / "train-labels-idx1-ubyte.gz").string()),
                    HasSubstr("at offset 4 "), HasSubstr("expected 3 labels"),
                    HasSubstr("train-images-idx3-ubyte.gz, found 2")));
  write_split(folder.path(), 3, std::string("\1\2\12", 3));
  EXPECT_THAT(fashion_mnist_problem(folder.path()),
              AllOf(HasSubstr("at offset 10 "), HasSubstr("a label from 0 to 9, found 10")));
  write_split(folder.path(), 3, std::string("\1\2\11", 3));
  EXPECT_EQ(fashion_mnist_problem(folder.path()), "");
}

class RealData : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      fashion_mnist_folder();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

std::int64_t byte_sum(const at::Tensor& inputs) {
  return inputs.to(at::kDouble).mul(255).round().sum().item<double>();
}

// The sums were taken once with Python's gzip over the files' bytes.
TEST_F(RealData, FirstThousand) {
  const auto data = fashion_mnist(Split::train, 1000);
  ASSERT_EQ(data.inputs.sizes(), (std::vector<std::int64_t>{1000, 784}));
  EXPECT_EQ(data.inputs.scalar_type(), at::kFloat);
  EXPECT_EQ(data.targets.scalar_type(), at::kLong);
  EXPECT_EQ(data.targets[0].item<int>(), 9);
  EXPECT_TRUE(
      data.targets.slice(0, 0, 10).equal(at::tensor({9, 0, 0, 3, 0, 2, 7, 2, 5, 5}, at::kLong)));
  EXPECT_EQ(byte_sum(data.inputs[0]), 76247);
  EXPECT_EQ(byte_sum(data.inputs), 56558003);
  EXPECT_TRUE(at::bincount(data.targets)
                  .equal(at::tensor({107, 104, 86, 92, 95, 100, 100, 115, 102, 99}, at::kLong)));
  EXPECT_EQ(data.inputs.min().item<float>(), 0.0F);
  EXPECT_EQ(data.inputs.max().item<float>(), 1.0F);
  // Divided, not multiplied by a rounded 1/255: the two differ in the last bit for some bytes.
  const auto bytes = data.inputs.mul(255).round();
  EXPECT_TRUE(data.inputs.equal(bytes / 255.0F));
}

TEST_F(RealData, WholeSplits) {
  const auto test = fashion_mnist(Split::test);
  EXPECT_EQ(test.size(), 10000);
  EXPECT_EQ(byte_sum(test.inputs), 573469082);
  EXPECT_TRUE(at::bincount(test.targets).equal(at::full({10}, 1000, at::kLong)));
  const auto train = fashion_mnist(Split::train);
  EXPECT_EQ(train.size(), 60000);
  EXPECT_EQ(byte_sum(train.inputs), 3431114169);
}

// Reading stops when it has what was asked for: a sixth of the samples must not cost the whole file. A ratio
// of two things measured in turn, so that a busy machine slows both.
TEST_F(RealData, TenThousandCostLessThanAllSixtyThousand) {
  const auto best_of = [](std::int64_t limit) {
    auto best = std::numeric_limits<std::clock_t>::max();
    for (int i = 0; i < 4; ++i) {
      const auto begin = std::clock();  // of the processor, so that other programs don't count
      fashion_mnist(Split::train, limit);
      best = std::min(best, std::clock() - begin);
    }
    return best;
  };
  EXPECT_LT(best_of(10'000) * 2, best_of(60'000));
}

TEST(FashionMnistFolder, NamedFolderWithoutDataIsAnError) {
  const TemporaryFolder folder("empty");
  const testing::Variable data("LOCKSTEP_DATA", folder.path());
  EXPECT_THAT(refusal([] { fashion_mnist_or_synthetic(Split::train, 10); }),
              AllOf(HasSubstr("LOCKSTEP_DATA names " + folder.path().string()),
                    HasSubstr("/usr/share/datasets/fashion-mnist")));
}

TEST(FashionMnistFolder, NamedFolderIsUsed) {
  const TemporaryFolder folder("small");
  write_split(folder.path(), 3, std::string("\1\2\3", 3));
  const testing::Variable variable("LOCKSTEP_DATA", folder.path());
  std::string which;
  const auto data = fashion_mnist_or_synthetic(Split::train, 2, &which);
  EXPECT_EQ(which, "Fashion-MNIST");
  EXPECT_TRUE(data.targets.equal(at::tensor({1, 2}, at::kLong)));
}

TEST(Synthetic, SeededNormalAndLeavesTheGlobalGenerator) {
  torch::manual_seed(5);
  const auto expected = torch::rand({4});
  torch::manual_seed(5);
  const auto data = synthetic(3000, 20, 4, 7);
  EXPECT_TRUE(torch::rand({4}).equal(expected));

  const auto again = synthetic(3000, 20, 4, 7);
  EXPECT_TRUE(data.inputs.equal(again.inputs));
  EXPECT_TRUE(data.targets.equal(again.targets));
  EXPECT_FALSE(data.inputs.equal(synthetic(3000, 20, 4, 8).inputs));
  // 60,000 numbers: mean 0 and deviation 1 within five of their standard errors.
  EXPECT_NEAR(data.inputs.mean().item<double>(), 0, 5 / std::sqrt(60000));
  EXPECT_NEAR(data.inputs.std().item<double>(), 1, 5 / std::sqrt(120000));
  EXPECT_EQ(data.inputs.scalar_type(), at::kFloat);
  EXPECT_EQ(data.targets.scalar_type(), at::kLong);
  EXPECT_EQ(std::get<0>(at::_unique(data.targets)).numel(), 4);
}

// A linear model learns it: the labels are those of a linear map.
TEST(Synthetic, CanBeLearned) {
  const auto data = synthetic(2000, 20, 4, 7);
  torch::manual_seed(0);
  torch::nn::Linear model(20, 4);
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(model(data.inputs), data.targets).backward();
    optimizer.step();
  }
  const auto right = model(data.inputs).argmax(1).eq(data.targets).to(at::kDouble).mean();
  EXPECT_GT(right.item<double>(), 0.95);
}

TEST(Synthetic, RefusesWhatMakesNoSense) {
  EXPECT_THROW(synthetic(0, 20, 4, 7), UsageError);
  EXPECT_THROW(synthetic(10, -1, 4, 7), UsageError);
}

TEST(Take, RowsInOrderAndRefusesOthers) {
  const TensorData data{at::arange(8, at::kFloat).view({4, 2}), at::arange(4, at::kLong)};
  const auto rows = take(data, {3, 0, 3});
  EXPECT_TRUE(rows.inputs.equal(at::tensor({6., 7., 0., 1., 6., 7.}, at::kFloat).view({3, 2})));
  EXPECT_TRUE(rows.targets.equal(at::tensor({3, 0, 3}, at::kLong)));
  EXPECT_EQ(take(data, {}).size(), 0);
  for (const std::int64_t index : {4, -1}) {
    try {
      take(data, {0, index});
      FAIL() << index;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("index " + std::to_string(index)),
                                      HasSubstr("number 1 of the list"), HasSubstr("4 samples")));
    }
  }
}

}  // namespace
}  // namespace lockstep
