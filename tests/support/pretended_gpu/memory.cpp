// CUDA's runtime: device memory. An address is one that no process may touch; its bytes are kept elsewhere.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <vector>

#include "device.h"

using namespace pretended;

namespace {

// New memory holds anything; here NaN, for every float.
constexpr char kAnything = '\xff';

struct Buffers {
  std::mutex mutex;
  std::map<const char*, std::vector<char>> bytes;  // by address
};
Buffers& buffers() {
  static auto& all = *new Buffers;
  return all;
}

}  // namespace

char* pretended::memory_of(const void* address, std::size_t bytes) {
  const auto* first = static_cast<const char*>(address);
  const std::lock_guard lock(buffers().mutex);
  auto found = buffers().bytes.upper_bound(first);
  if (found == buffers().bytes.begin())
    refuse("an address that is none of the GPU's memory is used");
  --found;
  const auto offset = static_cast<std::size_t>(first - found->first);
  if (offset + bytes > found->second.size())
    refuse("memory beyond a buffer of " + std::to_string(found->second.size()) + " bytes is used");
  return found->second.data() + offset;
}

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(buffers().mutex);
  buffers().bytes.emplace(static_cast<const char*>(*address), std::vector<char>(bytes, kAnything));
  ++counts().buffers;
  return cudaSuccess;
}

// Waits for the device, as the real one does: for all streams, whoever uses the memory.
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  wait_for_device();
  const std::lock_guard lock(buffers().mutex);
  const auto found = buffers().bytes.find(static_cast<const char*>(address));
  if (found == buffers().bytes.end()) refuse("memory is freed that is not there, or no more");
  ::munmap(address, found->second.size());
  buffers().bytes.erase(found);
  --counts().buffers;
  return cudaSuccess;
}

// Waits for no stream: they wait for none unasked.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice)
    std::memcpy(memory_of(to, bytes), from, bytes);
  else if (kind == cudaMemcpyDeviceToHost)
    std::memcpy(to, memory_of(from, bytes), bytes);
  else
    refuse("cudaMemcpy of kind " + std::to_string(kind) + " is not pretended");
  return cudaSuccess;
}

}  // extern "C"
