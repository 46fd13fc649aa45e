#include "device.h"

#include <lockstep/gpu/nccl_environment.h>
#include <lockstep/gpu/require_nccl.h>
#include <lockstep/launch/launch.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "parts.h"

using namespace lockstep;
using gpu::check;
namespace fs = std::filesystem;

namespace {

// Reads floats from the device, once nothing is under way on it.
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
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  const auto facts = gpu::facts_here(version);
  const auto gpus = static_cast<int>(facts.driver.gpus.size());
  const bool shares = context.share_gpu();
  const auto ranks = gpu::local_ranks(place.local_world_size, gpus, shares);
  std::string missing;
  for (const auto& problem : gpu::problems(facts, ranks, shares)) missing += "; " + problem.what;
  if (!missing.empty())
    throw UnavailableError(
        "this part needs a GPU for each rank, or one that they share (--backend "
        "nccl --share-gpu)" +
        missing);
  gpu::set_nccl_environment({.rank = context.rank(),
                             .one_machine = place.local_world_size == place.world_size,
                             .share_gpu = shares,
                             .nccl_library = version,
                             .local_ranks = place.local_world_size,
                             .gpus = gpus});
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

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
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
