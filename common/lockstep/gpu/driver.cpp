#include <lockstep/gpu/driver.h>
#include <lockstep/gpu/shared_library.h>

#include <array>
#include <cstddef>
#include <cstdio>

namespace lockstep::gpu {
namespace {

// As cuda.h has them; they are the driver's binary interface and do not change.
using CudaResult = int;
using CudaDevice = int;
using Uuid = std::array<unsigned char, 16>;
constexpr CudaResult kCudaSuccess = 0;
constexpr CudaResult kNoDevice = 100;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

struct CudaFunctions {
  CudaResult (*init)(unsigned flags);
  CudaResult (*driver_version)(int* version);
  CudaResult (*count)(int* count);
  CudaResult (*get)(CudaDevice* device, int ordinal);
  CudaResult (*name)(char* name, int size, CudaDevice device);
  CudaResult (*uuid)(Uuid* uuid, CudaDevice device);
  CudaResult (*memory)(std::size_t* bytes, CudaDevice device);
  CudaResult (*attribute)(int* value, int attribute, CudaDevice device);

  bool complete() const {
    return init && driver_version && count && get && name && uuid && memory && attribute;
  }
};

CudaFunctions functions_of_cuda(const SharedLibrary& cuda) {
  return {cuda.find<CudaResult(unsigned)>("cuInit"),
          cuda.find<CudaResult(int*)>("cuDriverGetVersion"),
          cuda.find<CudaResult(int*)>("cuDeviceGetCount"),
          cuda.find<CudaResult(CudaDevice*, int)>("cuDeviceGet"),
          cuda.find<CudaResult(char*, int, CudaDevice)>("cuDeviceGetName"),
          cuda.find<CudaResult(Uuid*, CudaDevice)>("cuDeviceGetUuid_v2"),
          cuda.find<CudaResult(std::size_t*, CudaDevice)>("cuDeviceTotalMem_v2"),
          cuda.find<CudaResult(int*, int, CudaDevice)>("cuDeviceGetAttribute")};
}

std::string text_of(const Uuid& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> hex{};
    std::snprintf(hex.data(), hex.size(), "%02x", uuid[i]);
    text += hex.data();
  }
  return text;
}

Gpu describe(const CudaFunctions& cuda, int ordinal) {
  Gpu gpu;
  CudaDevice device = 0;
  std::array<char, 256> name{};
  Uuid uuid{};
  std::size_t bytes = 0;
  if (cuda.get(&device, ordinal) != kCudaSuccess) return gpu;
  if (cuda.name(name.data(), name.size(), device) == kCudaSuccess) gpu.name = name.data();
  if (cuda.uuid(&uuid, device) == kCudaSuccess) gpu.uuid = text_of(uuid);
  if (cuda.memory(&bytes, device) == kCudaSuccess) gpu.bytes = bytes;
  cuda.attribute(&gpu.major, kComputeCapabilityMajor, device);
  cuda.attribute(&gpu.minor, kComputeCapabilityMinor, device);
  return gpu;
}

}  // namespace

Driver ask_driver() {
  Driver driver;
  const SharedLibrary library("libcuda.so.1");
  if (!library.is_open()) {
    driver.missing = library.why_not();
    return driver;
  }
  const auto cuda = functions_of_cuda(library);
  if (!cuda.complete()) {
    driver.missing = "libcuda.so.1 is too old or no driver: it lacks functions that CUDA 11.4 has";
    return driver;
  }
  cuda.driver_version(&driver.cuda_version);
  const CudaResult started = cuda.init(0);
  if (started == kNoDevice) return driver;
  if (started != kCudaSuccess) {
    driver.missing = "libcuda.so.1 is there, and cuInit ends with error " +
                     std::to_string(started) + " of CUresult (cuda.h says what that is)";
    return driver;
  }
  int count = 0;
  cuda.count(&count);
  for (int ordinal = 0; ordinal < count; ++ordinal) driver.gpus.push_back(describe(cuda, ordinal));
  return driver;
}

int gpus_here() {
  return static_cast<int>(ask_driver().gpus.size());
}

}  // namespace lockstep::gpu
