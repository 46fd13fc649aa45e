// The kernels on a GPU, beside ATen on the CPU: bit for bit.
#include <gtest/gtest.h>
#include <lockstep/gpu/kernels/bucket.h>
#include <lockstep/gpu/kernels/bucket_plan.h>
#include <lockstep/gpu/kernels/check.h>
#include <lockstep/gpu/kernels/delay.h>
#include <torch/torch.h>

#include <cstring>

#include "../support/gpus.h"

namespace lockstep::gpu {
namespace {

// Memory on the GPU, with a margin of a known value on both sides, at an address that is `past` bytes beyond a
// multiple of 16.
class OnGpu {
 public:
  OnGpu(std::int64_t bytes, std::int64_t past) : bytes_(bytes), begin_(kMargin + past) {
    const auto whole = static_cast<std::size_t>(begin_ + bytes + kMargin);
    check(cudaMalloc(&memory_, whole), "cudaMalloc");
    check(cudaMemset(memory_, kUntouched, whole), "cudaMemset");
  }
  explicit OnGpu(const at::Tensor& tensor, std::int64_t past = 0)
      : OnGpu(static_cast<std::int64_t>(tensor.nbytes()), past) {
    check(cudaMemcpy(data(), tensor.const_data_ptr(), tensor.nbytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  ~OnGpu() { cudaFree(memory_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  void* data() const { return static_cast<char*>(memory_) + begin_; }
  // What it holds now, as a tensor like this one. The margins must be as they were.
  at::Tensor read(const at::Tensor& like) const {
    std::vector<unsigned char> all(static_cast<std::size_t>(begin_ + bytes_ + kMargin));
    check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i < static_cast<std::size_t>(begin_) || i >= static_cast<std::size_t>(begin_ + bytes_))
        EXPECT_EQ(all[i], kUntouched) << "byte " << i << " is outside";
    auto tensor = at::empty_like(like);
    std::memcpy(tensor.mutable_data_ptr(), all.data() + begin_, static_cast<std::size_t>(bytes_));
    return tensor;
  }

 private:
  static constexpr std::int64_t kMargin = 64;
  static constexpr unsigned char kUntouched = 0xA5;
  void* memory_ = nullptr;
  std::int64_t bytes_, begin_;
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

class Kernels : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (const auto why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    torch::manual_seed(17);
  }
  Dtype dtype() const { return GetParam() == at::kFloat ? Dtype::float32 : Dtype::bfloat16; }
  std::int64_t bytes() const { return GetParam() == at::kFloat ? 4 : 2; }

  // To the bucket and back, each tensor, and the bucket, as far past a multiple of 16 as is said.
  void expect_as_aten(const std::vector<std::int64_t>& sizes, std::int64_t past_of_tensors,
                      std::int64_t past_of_bucket) {
    SCOPED_TRACE("tensors " + std::to_string(past_of_tensors) + " past, bucket " +
                 std::to_string(past_of_bucket));
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<OnGpu>> on_gpu;
    Tensors gradients{.data = {}, .sizes = sizes, .dtype = dtype()};
    for (const auto size : sizes) {
      tensors.push_back((at::randn({size}) * 1000).to(GetParam()));
      on_gpu.push_back(std::make_unique<OnGpu>(tensors.back(), past_of_tensors));
      gradients.data.push_back(on_gpu.back()->data());
    }
    constexpr float kScale = 1.0f / 3;  // is rounded, and so is each product
    const auto expected = at::cat(tensors) * static_cast<double>(kScale);
    const OnGpu bucket(static_cast<std::int64_t>(expected.nbytes()), past_of_bucket);
    flatten_and_scale(gradients, bucket.data(), kScale, nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    EXPECT_TRUE(same_bits(bucket.read(expected), expected));

    unflatten(bucket.data(), gradients, nullptr);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto part = expected.narrow(0, offset, sizes[i]).contiguous();
      EXPECT_TRUE(same_bits(on_gpu[i]->read(part), part)) << "tensor " << i;
      offset += sizes[i];
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, Kernels, ::testing::Values(at::kFloat, at::kBFloat16));

TEST_P(Kernels, FlattenAsAtenDoes) {
  expect_as_aten({1}, 0, 0);
  expect_as_aten({1, 3, 8, 1023}, 0, 0);
  expect_as_aten({4 * kChunk, kChunk + 1, 0, kChunk - 1}, 0, 0);
  expect_as_aten(std::vector<std::int64_t>(2 * kTensorsPerLaunch + 3, 37), 0, 0);
}

TEST_P(Kernels, FlattenAtAnyAddress) {
  for (std::int64_t past = 0; past < 16; past += bytes())
    for (const std::int64_t of_bucket : {std::int64_t{0}, past, bytes()})
      expect_as_aten({5, 2 * kChunk + 3, 64}, past, of_bucket);
}

// Bits that a multiplication would change come back as they were: a NaN's payload, a negative zero.
TEST_P(Kernels, UnflattenMovesBits) {
  auto bits = at::arange(70000, at::kLong).to(at::kShort);
  if (GetParam() == at::kFloat) bits = at::arange(0x7F800000L, 0x7F800000L + 70000).to(at::kInt);
  const OnGpu bucket(bits), tensor(static_cast<std::int64_t>(bits.nbytes()), bytes());
  unflatten(bucket.data(), {{tensor.data()}, {bits.numel()}, dtype()}, nullptr);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  EXPECT_TRUE(same_bits(tensor.read(bits), bits));
}

TEST_P(Kernels, CountBeyondTwoToThe31) {
  const std::int64_t count = (std::int64_t{1} << 31) + 9;
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free < static_cast<std::size_t>(5 * count * bytes() / 2))
    GTEST_SKIP() << "it takes " << 2 * count * bytes() << " bytes of the GPU's memory";
  const OnGpu tensor(count * bytes(), 0), bucket(count * bytes(), 0);
  check(cudaMemset(tensor.data(), 0x40, static_cast<std::size_t>(count * bytes())), "cudaMemset");
  flatten_and_scale({{tensor.data()}, {count}, dtype()}, bucket.data(), 0.5, nullptr);
  // 0x4040... is as many times as large as its half in both dtypes.
  const auto like = at::empty({9}, GetParam());
  auto last = at::empty_like(like), whole = at::empty_like(like);
  const auto skipped = static_cast<std::size_t>((count - 9) * bytes());
  check(cudaMemcpy(last.mutable_data_ptr(), static_cast<char*>(bucket.data()) + skipped,
                   like.nbytes(), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  check(cudaMemcpy(whole.mutable_data_ptr(), static_cast<char*>(tensor.data()) + skipped,
                   like.nbytes(), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  EXPECT_TRUE(same_bits(last, whole * 0.5));
}

// By the GPU's own clock, between two events; and the other stream does not wait.
TEST(Delay, HoldsUpItsStreamAlone) {
  if (const auto why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  cudaStream_t held_up = nullptr, other = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr, of_other = nullptr;
  for (auto* stream : {&held_up, &other})
    check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (auto* event : {&begin, &end, &of_other}) check(cudaEventCreate(event), "cudaEventCreate");
  delay(std::chrono::milliseconds(1), held_up);  // what the first launch of a kernel takes
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaEventRecord(begin, held_up), "cudaEventRecord");
  delay(std::chrono::milliseconds(100), held_up);
  check(cudaEventRecord(end, held_up), "cudaEventRecord");
  check(cudaEventRecord(of_other, other), "cudaEventRecord");
  check(cudaEventSynchronize(of_other), "cudaEventSynchronize");
  EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);
  cudaGetLastError();  // else that answer would look like the next error
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float took = 0;
  check(cudaEventElapsedTime(&took, begin, end), "cudaEventElapsedTime");
  EXPECT_GE(took, 99);
  EXPECT_LT(took, 300);
  EXPECT_THROW(delay(kLongestDelay + std::chrono::nanoseconds(1), held_up), UsageError);
  for (auto* event : {begin, end, of_other}) cudaEventDestroy(event);
  for (auto* stream : {held_up, other}) cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace lockstep::gpu
