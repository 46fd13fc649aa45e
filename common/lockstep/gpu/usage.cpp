#include <lockstep/gpu/shared_library.h>
#include <lockstep/gpu/usage.h>

#include <array>
#include <limits>

namespace lockstep::gpu {
namespace {

// As nvml.h has them.
using Result = int;
using Device = void*;
constexpr Result kSuccess = 0;
constexpr Result kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

struct Functions {
  Result (*init)();
  Result (*shutdown)();
  Result (*count)(unsigned* count);
  Result (*get)(unsigned index, Device* device);
  Result (*uuid)(Device device, char* uuid, unsigned size);
  Result (*memory)(Device device, Memory* memory);
  Result (*processes)(Device device, unsigned* count, ProcessInfo* infos);

  bool complete() const { return init && shutdown && count && get && uuid && memory && processes; }
};

Functions functions_of(const SharedLibrary& nvml) {
  return {nvml.find<Result()>("nvmlInit_v2"),
          nvml.find<Result()>("nvmlShutdown"),
          nvml.find<Result(unsigned*)>("nvmlDeviceGetCount_v2"),
          nvml.find<Result(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2"),
          nvml.find<Result(Device, char*, unsigned)>("nvmlDeviceGetUUID"),
          nvml.find<Result(Device, Memory*)>("nvmlDeviceGetMemoryInfo"),
          nvml.find<Result(Device, unsigned*, ProcessInfo*)>(
              "nvmlDeviceGetComputeRunningProcesses_v3")};
}

std::vector<GpuProcess> processes_on(const Functions& nvml, Device device) {
  std::vector<ProcessInfo> infos;
  unsigned count = 16;
  Result result = kInsufficientSize;
  // Where there is no room for all, `count` says how many there are; more may come meanwhile.
  for (int tries = 0; tries < 4 && result == kInsufficientSize; ++tries) {
    infos.resize(count + 16);
    count = static_cast<unsigned>(infos.size());
    result = nvml.processes(device, &count, infos.data());
  }
  std::vector<GpuProcess> processes;
  if (result != kSuccess) return processes;
  for (unsigned i = 0; i < count; ++i) {
    GpuProcess process{.pid = static_cast<int>(infos[i].pid), .bytes = {}};
    if (infos[i].used_memory != kNotAvailable) process.bytes = infos[i].used_memory;
    processes.push_back(process);
  }
  return processes;
}

Usage usage_of(const Functions& nvml, unsigned index) {
  Usage usage;
  Device device = nullptr;
  std::array<char, 96> uuid{};
  Memory memory{};
  if (nvml.get(index, &device) != kSuccess) return usage;
  if (nvml.uuid(device, uuid.data(), uuid.size()) == kSuccess) usage.uuid = uuid.data();
  if (nvml.memory(device, &memory) == kSuccess) {
    usage.used_bytes = memory.used;
    usage.total_bytes = memory.total;
  }
  usage.processes = processes_on(nvml, device);
  return usage;
}

}  // namespace

std::optional<std::vector<Usage>> ask_usage() {
  const SharedLibrary library("libnvidia-ml.so.1");
  const auto nvml = functions_of(library);
  if (!nvml.complete() || nvml.init() != kSuccess) return std::nullopt;
  unsigned count = 0;
  nvml.count(&count);
  std::vector<Usage> all;
  for (unsigned index = 0; index < count; ++index) all.push_back(usage_of(nvml, index));
  nvml.shutdown();
  return all;
}

}  // namespace lockstep::gpu
