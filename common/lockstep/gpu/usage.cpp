#include <lockstep/gpu/shared_library.h>
#include <lockstep/gpu/usage.h>

#include <array>
#include <limits>

namespace lockstep::gpu {
namespace {

// As nvml.h has them.
using NvmlResult = int;
using NvmlDevice = void*;
constexpr NvmlResult kNvmlSuccess = 0;
constexpr NvmlResult kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

struct NvmlFunctions {
  NvmlResult (*init)();
  NvmlResult (*shutdown)();
  NvmlResult (*count)(unsigned* count);
  NvmlResult (*get)(unsigned index, NvmlDevice* device);
  NvmlResult (*uuid)(NvmlDevice device, char* uuid, unsigned size);
  NvmlResult (*memory)(NvmlDevice device, Memory* memory);
  NvmlResult (*processes)(NvmlDevice device, unsigned* count, ProcessInfo* infos);

  bool complete() const { return init && shutdown && count && get && uuid && memory && processes; }
};

NvmlFunctions functions_of_nvml(const SharedLibrary& nvml) {
  return {nvml.find<NvmlResult()>("nvmlInit_v2"),
          nvml.find<NvmlResult()>("nvmlShutdown"),
          nvml.find<NvmlResult(unsigned*)>("nvmlDeviceGetCount_v2"),
          nvml.find<NvmlResult(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2"),
          nvml.find<NvmlResult(NvmlDevice, char*, unsigned)>("nvmlDeviceGetUUID"),
          nvml.find<NvmlResult(NvmlDevice, Memory*)>("nvmlDeviceGetMemoryInfo"),
          nvml.find<NvmlResult(NvmlDevice, unsigned*, ProcessInfo*)>(
              "nvmlDeviceGetComputeRunningProcesses_v3")};
}

std::vector<GpuProcess> processes_on(const NvmlFunctions& nvml, NvmlDevice device) {
  std::vector<ProcessInfo> infos;
  unsigned count = 16;
  NvmlResult result = kInsufficientSize;
  // Where there is no room for all, `count` says how many there are; more may come meanwhile.
  for (int tries = 0; tries < 4 && result == kInsufficientSize; ++tries) {
    infos.resize(count + 16);
    count = static_cast<unsigned>(infos.size());
    result = nvml.processes(device, &count, infos.data());
  }
  std::vector<GpuProcess> processes;
  if (result != kNvmlSuccess) return processes;
  for (unsigned i = 0; i < count; ++i) {
    GpuProcess process{.pid = static_cast<int>(infos[i].pid), .bytes = {}};
    if (infos[i].used_memory != kNotAvailable) process.bytes = infos[i].used_memory;
    processes.push_back(process);
  }
  return processes;
}

Usage usage_of(const NvmlFunctions& nvml, unsigned index) {
  Usage usage;
  NvmlDevice device = nullptr;
  std::array<char, 96> uuid{};
  Memory memory{};
  if (nvml.get(index, &device) != kNvmlSuccess) return usage;
  if (nvml.uuid(device, uuid.data(), uuid.size()) == kNvmlSuccess) usage.uuid = uuid.data();
  if (nvml.memory(device, &memory) == kNvmlSuccess) {
    usage.used_bytes = memory.used;
    usage.total_bytes = memory.total;
  }
  usage.processes = processes_on(nvml, device);
  return usage;
}

}  // namespace

std::optional<std::vector<Usage>> ask_usage() {
  const SharedLibrary library("libnvidia-ml.so.1");
  const auto nvml = functions_of_nvml(library);
  if (!nvml.complete() || nvml.init() != kNvmlSuccess) return std::nullopt;
  unsigned count = 0;
  nvml.count(&count);
  std::vector<Usage> all;
  for (unsigned index = 0; index < count; ++index) all.push_back(usage_of(nvml, index));
  nvml.shutdown();
  return all;
}

}  // namespace lockstep::gpu
