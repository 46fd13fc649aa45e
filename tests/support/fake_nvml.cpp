// A libnvidia-ml.so.1 for tests: two GPUs; 20 processes have a context on the first, the second of them of unknown
// size, and none on the other.
#include <cstdio>

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
constexpr unsigned kProcesses = 20;

unsigned index_of(void* device) {
  return static_cast<unsigned>(reinterpret_cast<unsigned long>(device)) - 1;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(index + 1UL);
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  std::snprintf(uuid, size, "GPU-%u", index_of(device));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {1000, 600, 400 + index_of(device)};
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, ProcessInfo* infos) {
  constexpr int kInsufficientSize = 7;
  const unsigned room = *count;
  *count = index_of(device) == 0 ? kProcesses : 0;
  if (room < *count) return kInsufficientSize;
  for (unsigned i = 0; i < *count; ++i) infos[i] = {100 + i, i == 1 ? ~0ULL : 10ULL * i, 0, 0};
  return 0;
}

}  // extern "C"
