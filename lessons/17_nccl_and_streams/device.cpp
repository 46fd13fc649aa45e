#include "device.h"

#include <lockstep/gpu/require_nccl.h>
#include <lockstep/launch/launch.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "parts.h"

using namespace lockstep;
using cuda::check;
namespace fs = std::filesystem;

namespace {

// What is read of a device at a moment when nothing is under way on it.
std::vector<float> read(const float* data, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(values.data(), data, values.size() * sizeof(float), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return values;
}

}  // namespace

void use_own_gpu(const RankContext& context) {
  const auto place = launch::placement_from_environment().value_or(launch::Placement{});
  const auto facts = gpu::facts_here();
  const auto gpus = static_cast<int>(facts.driver.gpus.size());
  const bool shares = context.share_gpu();
  try {
    gpu::require_nccl(facts, gpu::local_ranks(place.local_world_size, gpus, shares), shares);
  } catch (const UnavailableError& error) {
    throw UnavailableError(std::string("this part needs a GPU for each rank: ") + error.what());
  }
  const auto host = "lesson-rank-" + std::to_string(context.rank());
  if (place.local_world_size > gpus) ::setenv("NCCL_HOSTID", host.c_str(), /*overwrite=*/0);
  check(cudaSetDevice(gpu::device_of(place.local_rank, gpus, shares)), "cudaSetDevice");
}

ncclUniqueId shared_id(const RankContext& context, const std::string& name) {
  const auto file = context.folder() / ("nccl_id_" + name);
  ncclUniqueId id{};
  if (context.rank() == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::ofstream(file.string() + ".new", std::ios::binary).write(id.internal, sizeof(id.internal));
    fs::rename(file.string() + ".new", file);
    return id;
  }
  const auto until = std::chrono::steady_clock::now() + kUntilAllAreThere;
  while (!fs::exists(file)) {
    if (std::chrono::steady_clock::now() > until)
      throw Error("rank 0 does not say NCCL's identifier of " + name);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::ifstream(file, std::ios::binary).read(id.internal, sizeof(id.internal));
  return id;
}

Floats::Floats(std::int64_t count, float value) : count_(count) {
  const std::vector<float> values(static_cast<std::size_t>(count), value);
  check(cudaMalloc(reinterpret_cast<void**>(&data_), values.size() * sizeof(float)), "cudaMalloc");
  check(cudaMemcpy(data_, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

float Floats::worst(float right) const {
  float worst = right;
  for (const float value : read(data_, count_))
    if (!(std::abs(value - right) <= std::abs(worst - right))) worst = value;
  return worst;
}
