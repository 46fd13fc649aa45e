// Sketches and content hashes: linear, telling, and cheap.
#include <gtest/gtest.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/record/content.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/sketch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::record {
namespace {

at::Tensor numbers(std::int64_t size, int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::randn({size}, torch::kFloat64);
}

// The definition, element by element.
double projection(const at::Tensor& tensor, std::uint64_t p) {
  double sum = 0;
  const auto* data = tensor.const_data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::uint64_t z =
        (trace::kSketch * static_cast<std::uint64_t>(i / 64) + p + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    sum += (z >> (i % 64) & 1) != 0 ? -data[i] : data[i];
  }
  return sum;
}

TEST(Sketch, IsWhatItsHeaderSays) {
  for (const std::int64_t size : {0, 1, 3, 63, 64, 65, 200}) {
    const auto tensor = numbers(size, 1);
    const auto summary = summarize(tensor);
    ASSERT_EQ(summary.sketch.size(), static_cast<std::size_t>(trace::kSketch));
    for (std::size_t p = 0; p < summary.sketch.size(); ++p)
      EXPECT_NEAR(summary.sketch[p], projection(tensor, p), 1e-12) << size;
    EXPECT_NEAR(summary.norm, tensor.norm().item<double>(), 1e-12) << size;
  }
}

TEST(Sketch, OfASumIsTheSumOfTheSketches) {
  const auto a = numbers(100'003, 1), b = numbers(100'003, 2);
  const auto sum = summarize(a + b), of_a = summarize(a), of_b = summarize(b);
  for (std::size_t p = 0; p < sum.sketch.size(); ++p)
    EXPECT_NEAR(sum.sketch[p], of_a.sketch[p] + of_b.sketch[p], 1e-12 * sum.norm);
}

TEST(Sketch, TellsTensorsApart) {
  const auto a = numbers(1000, 1);
  auto changed = a.clone();
  changed[777] += 1e-9;
  EXPECT_NE(summarize(a).sketch, summarize(changed).sketch);
  EXPECT_NE(summarize(a).hash, summarize(changed).hash);
  EXPECT_NE(summarize(a).sketch, summarize(-a).sketch);
  EXPECT_NE(summarize(a).sketch, summarize(a.flip(0)).sketch);
  EXPECT_EQ(summarize(a).sketch, summarize(a.clone()).sketch);
}

// Its square is the squared norm on average: 400 constant tensors, each under signs of its own,
// give 1600 squares of variance 2 and so a mean with a standard deviation of 0.035.
TEST(Sketch, EstimatesTheNorm) {
  constexpr std::int64_t kTensors = 400, kSize = 100;
  double mean = 0;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    auto tensor = torch::zeros({kTensors * kSize});
    tensor.slice(0, i * kSize, (i + 1) * kSize).fill_(1);
    for (const double value : summarize(tensor).sketch)
      mean += value * value / kSize / (kTensors * trace::kSketch);
  }
  EXPECT_NEAR(mean, 1, 0.14);
}

TEST(Sketch, TakesAnyTensor) {
  const auto square = numbers(36, 1).view({6, 6});
  EXPECT_EQ(summarize(square.t()).sketch, summarize(square.t().contiguous()).sketch);
  EXPECT_NE(summarize(square.t()).sketch, summarize(square).sketch);
  EXPECT_EQ(summarize(torch::arange(10)).sketch, summarize(torch::arange(10.0)).sketch);
  const auto narrow = square.to(torch::kFloat32);
  EXPECT_EQ(summarize(narrow).sketch, summarize(narrow.to(torch::kFloat64)).sketch);
  const auto half = square.to(torch::kBFloat16);
  EXPECT_EQ(summarize(half).sketch, summarize(half.to(torch::kFloat64)).sketch);
  EXPECT_EQ(summarize(square.to_sparse()).sketch, summarize(square).sketch);
  EXPECT_EQ(summarize(torch::ones({})).sketch.size(), static_cast<std::size_t>(trace::kSketch));
  EXPECT_NO_THROW(summarize(torch::ones({3}, torch::requires_grad())));
  const auto every_second = numbers(30, 1).slice(0, 0, 30, 2);
  EXPECT_EQ(summarize(every_second).sketch, summarize(every_second.clone()).sketch);
  const auto expanded = numbers(1, 1).expand({5});
  EXPECT_EQ(summarize(expanded).hash, summarize(expanded.contiguous()).hash);
  const auto complex = torch::view_as_complex(numbers(20, 1).view({10, 2}));
  EXPECT_EQ(summarize(complex).sketch, summarize(numbers(20, 1)).sketch);
  EXPECT_EQ(summarize(complex.conj()).sketch, summarize(complex.conj().resolve_conj()).sketch);
  EXPECT_NE(summarize(complex.conj()).sketch, summarize(complex).sketch);
}

TEST(Sketch, OfALargeTensorIsTheSameHoweverItLies) {
  const auto wide = numbers(3 * 300'001, 1).view({3, 300'001});  // its rows are larger than a piece
  for (const auto& tensor : {wide, wide.t().contiguous().to(torch::kFloat32),
                             wide.view({1, 3, 300'001}).to(torch::kBFloat16)}) {
    const auto expected = summarize(tensor.reshape(-1));
    for (const auto& same : {tensor, tensor.transpose(-1, -2).contiguous().transpose(-1, -2),
                             tensor.to_sparse(), tensor.to_sparse(1)}) {
      EXPECT_EQ(summarize(same).hash, expected.hash);
      EXPECT_EQ(summarize(same).sketch, expected.sketch);
    }
  }
  const auto sketch = summarize(wide).sketch;
  for (std::size_t p = 0; p < sketch.size(); ++p)
    EXPECT_NEAR(sketch[p], projection(wide.reshape(-1), p), 1e-9);
}

TEST(Sketch, OfNothingIsZero) {
  for (const auto type : {torch::kFloat32, torch::kBFloat16, torch::kInt64}) {
    const auto summary = summarize(torch::empty({0, 7}, type));
    EXPECT_EQ(summary.norm, 0);
    EXPECT_EQ(summary.sketch, std::vector<double>(trace::kSketch, 0.0));
  }
}

TEST(Sketch, OfFloat32IsAccumulatedInFloat64) {
  // 10^6, then 10^6 ones: a float32 sum of squares would stay at 10^12.
  auto tensor = torch::ones({1'000'001});
  tensor[0] = 1e6;
  EXPECT_NEAR(summarize(tensor).norm, std::sqrt(1e12 + 1e6), 1e-6);
  EXPECT_EQ(summarize(tensor).sketch, summarize(tensor.to(torch::kFloat64)).sketch);
}

// What plain_on_cpu() is for.
TEST(Sketch, CopiesNothingThatIsPlainAlready) {
  const auto tensor = torch::ones({3, 4}, torch::requires_grad());
  EXPECT_EQ(plain_on_cpu(tensor).const_data_ptr(), tensor.const_data_ptr());
  EXPECT_NE(plain_on_cpu(tensor.t()).const_data_ptr(), tensor.const_data_ptr());
}

// A bound that only a mistake breaks; the benchmark has the figure.
TEST(Sketch, IsCheap) {
  const auto tensor = torch::randn({1'600'000});
  std::vector<std::int64_t> took;
  for (int round = 0; round < 9; ++round) {
    const auto begin = monotonic_ns();
    summarize(tensor);
    took.push_back(monotonic_ns() - begin);
  }
  const double fastest_ms = static_cast<double>(*std::min_element(took.begin(), took.end())) / 1e6;
  RecordProperty("milliseconds", std::to_string(fastest_ms));
  EXPECT_LT(fastest_ms, 20);
}

std::vector<std::int64_t> range(std::int64_t size) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), std::int64_t{0});
  return ids;
}

TEST(Content, ASetIsTheSameInAnyOrder) {
  const auto inputs = numbers(60, 1).view({20, 3}), targets = torch::arange(20);
  auto ids = range(20);
  const auto plain = hash_content(inputs, targets, ids);
  auto reversed_ids = ids;
  std::reverse(reversed_ids.begin(), reversed_ids.end());
  const auto reversed = hash_content(inputs.flip(0), targets.flip(0), reversed_ids);
  EXPECT_NE(plain.ids_in_order, reversed.ids_in_order);
  EXPECT_EQ(plain.ids_as_set, reversed.ids_as_set);
  EXPECT_EQ(plain.content_as_set, reversed.content_as_set);
}

TEST(Content, SamplesUnderOtherIdsAreOtherContent) {
  const auto inputs = numbers(60, 1).view({20, 3}), targets = torch::arange(20);
  const auto ids = range(20);
  const auto plain = hash_content(inputs, targets, ids);
  EXPECT_NE(hash_content(inputs.flip(0), targets, ids).content_as_set, plain.content_as_set);
  EXPECT_NE(hash_content(inputs, targets + 1, ids).content_as_set, plain.content_as_set);
  EXPECT_EQ(hash_content(inputs.flip(0), targets, ids).ids_as_set, plain.ids_as_set);
  EXPECT_THROW(hash_content(inputs, targets, range(19)), UsageError);
  EXPECT_THROW(hash_content(torch::ones({}), targets, ids), UsageError);
}

TEST(Content, OneBitOfOneSampleIsOtherContent) {
  for (const auto type : {torch::kUInt8, torch::kFloat32, torch::kBFloat16}) {
    const auto inputs = torch::arange(60).view({20, 3}).to(type), targets = torch::arange(20);
    auto changed = inputs.clone();
    static_cast<char*>(changed.data_ptr())[changed.nbytes() - 1] ^= 1;
    const auto a = hash_content(inputs, targets, range(20)),
               b = hash_content(changed, targets, range(20));
    EXPECT_NE(a.content_as_set, b.content_as_set);
    EXPECT_EQ(a.ids_in_order, b.ids_in_order);
  }
}

TEST(Content, OfNothingAndOfStridedRows) {
  EXPECT_EQ(hash_content(torch::ones({0, 3}), torch::ones({0}), {}).content_as_set, 0u);
  const auto wide = numbers(120, 1).view({20, 6}), targets = torch::arange(20);
  const auto half = wide.narrow(1, 0, 3);
  EXPECT_EQ(hash_content(half, targets, range(20)).content_as_set,
            hash_content(half.contiguous(), targets, range(20)).content_as_set);
}

TEST(Content, OfFashionMnistsTestSetTakesMilliseconds) {
  const auto inputs = torch::randn({10'000, 784}), targets = torch::zeros({10'000}, torch::kInt64);
  const auto ids = range(10'000);
  std::int64_t fastest = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round < 3; ++round) {
    const auto begin = monotonic_ns();
    hash_content(inputs, targets, ids);
    fastest = std::min(fastest, monotonic_ns() - begin);
  }
  RecordProperty("milliseconds", std::to_string(static_cast<double>(fastest) / 1e6));
  EXPECT_LT(fastest, 50'000'000);
}

}  // namespace
}  // namespace lockstep::record
