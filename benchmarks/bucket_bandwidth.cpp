// flatten_and_scale and unflatten against the limit: a device-to-device cudaMemcpy of as many bytes, in one run.
//
//   bucket_bandwidth [--json FILE]        needs a GPU; exit code 77 without one
//
// A round is one copy, one flatten_and_scale and one unflatten of the same tensors, each timed by events on the GPU;
// the rounds' ratios are told by their median. Sizes: ResNet-50's gradients (161 tensors, 25.6 M values) twelve times,
// so that no cache holds them.
#include <cuda_runtime_api.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/gpu/driver.h>
#include <lockstep/gpu/kernels/bucket.h>
#include <lockstep/gpu/kernels/check.h>
#include <lockstep/gpu/kernels/delay.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

namespace {

using namespace lockstep;
using gpu::check;

constexpr std::size_t kRounds = 51;
constexpr std::chrono::milliseconds kWarmUp{500};  // until a GPU that was idle has its clocks up
// Longer than the host needs to give the stream its work: else the GPU would wait for it, between the two events.
constexpr std::chrono::milliseconds kAhead{1};
constexpr double kTarget = 0.95;  // of the copy's bandwidth

// A ResNet-50's convolutions, norms and classifier, by their numbers of parameters.
std::vector<std::int64_t> resnet50_sizes() {
  std::vector<std::int64_t> sizes{64 * 3 * 7 * 7, 64, 64};
  std::int64_t channels = 64;
  const std::vector<std::pair<std::int64_t, int>> stages{{64, 3}, {128, 4}, {256, 6}, {512, 3}};
  for (const auto& [width, blocks] : stages)
    for (int block = 0; block < blocks; ++block) {
      const std::pair<std::int64_t, std::int64_t> layers[] = {
          {channels * width, width}, {width * width * 9, width}, {width * width * 4, 4 * width}};
      for (const auto& [weights, out] : layers) sizes.insert(sizes.end(), {weights, out, out});
      if (block == 0) sizes.insert(sizes.end(), {channels * width * 4, 4 * width, 4 * width});
      channels = 4 * width;
    }
  sizes.insert(sizes.end(), {2048 * 1000, 1000});
  return sizes;
}

struct Gpu {
  Gpu() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
  }
  double milliseconds(const std::function<void()>& work) {
    gpu::delay(kAhead, stream);
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    work();
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float took = 0;
    check(cudaEventElapsedTime(&took, begin, end), "cudaEventElapsedTime");
    return took;
  }
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nlohmann::json measure(Gpu& gpu, gpu::Dtype dtype) {
  const std::int64_t size = dtype == gpu::Dtype::float32 ? 4 : 2;
  gpu::Tensors tensors{.data = {}, .sizes = {}, .dtype = dtype};
  std::int64_t elements = 0;
  for (int copy = 0; copy < 12; ++copy)
    for (const auto count : resnet50_sizes()) {
      void* data = nullptr;
      check(cudaMalloc(&data, static_cast<std::size_t>(count * size)), "cudaMalloc");
      check(cudaMemset(data, 0, static_cast<std::size_t>(count * size)), "cudaMemset");
      tensors.data.push_back(data);
      tensors.sizes.push_back(count);
      elements += count;
    }
  const auto bytes = static_cast<std::size_t>(elements * size);
  void *bucket = nullptr, *other = nullptr;
  check(cudaMalloc(&bucket, bytes), "cudaMalloc");
  check(cudaMalloc(&other, bytes), "cudaMalloc");

  std::vector<double> copies, flatten, back;
  const auto warm = std::chrono::steady_clock::now() + kWarmUp;
  while (copies.size() < kRounds) {
    const auto copy = gpu.milliseconds([&] {
      check(cudaMemcpyAsync(other, bucket, bytes, cudaMemcpyDeviceToDevice, gpu.stream),
            "cudaMemcpyAsync");
    });
    const auto there =
        gpu.milliseconds([&] { gpu::flatten_and_scale(tensors, bucket, 1.0f / 8, gpu.stream); });
    const auto again = gpu.milliseconds([&] { gpu::unflatten(bucket, tensors, gpu.stream); });
    if (std::chrono::steady_clock::now() < warm) continue;
    copies.push_back(copy);
    flatten.push_back(copy / there);
    back.push_back(copy / again);
  }
  for (auto* data : tensors.data) cudaFree(data);
  cudaFree(bucket);
  cudaFree(other);
  return {{"dtype", size == 4 ? "float32" : "bfloat16"},
          {"tensors", tensors.sizes.size()},
          {"bytes", bytes},
          {"memcpy_gb_per_s", 2e-6 * static_cast<double>(bytes) / median(copies)},
          {"flatten_and_scale_of_memcpy", median(flatten)},
          {"unflatten_of_memcpy", median(back)},
          {"target", kTarget},
          {"target_met", std::min(median(flatten), median(back)) >= kTarget},
          {"rounds", kRounds}};
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && (arguments.size() != 2 || arguments[0] != "--json")) {
    std::cerr << "usage: bucket_bandwidth [--json FILE]\n";
    return kUsage;
  }
  if (const auto driver = gpu::ask_driver(); driver.gpus.empty()) {
    std::cerr << "skipped: there is no GPU"
              << (driver.missing.empty() ? "" : "; no NVIDIA driver: " + driver.missing) << "\n";
    return kSkipped;
  }
  Gpu gpu;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  const nlohmann::json result{
      {"gpu", properties.name},
      {"results", {measure(gpu, gpu::Dtype::float32), measure(gpu, gpu::Dtype::bfloat16)}}};
  std::cout << result.dump(2) << "\n";
  if (!arguments.empty()) write_file(arguments[1], result.dump(2) + "\n");
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return lockstep::kCouldNotRun;
}
