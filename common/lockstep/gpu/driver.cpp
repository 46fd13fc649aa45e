#include <lockstep/gpu/driver.h>
#include <lockstep/gpu/shared_library.h>

#include <array>
#include <cstddef>
#include <cstdio>

namespace lockstep::gpu {
namespace {

// As cuda.h has them; they are the driver's binary interface and do not change.
using Result = int;
using Device = int;
using Uuid = std::array<unsigned char, 16>;
constexpr Result kSuccess = 0;
constexpr Result kNoDevice = 100;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;

struct Functions {
  Result (*init)(unsigned flags);
  Result (*driver_version)(int* version);
  Result (*count)(int* count);
  Result (*get)(Device* device, int ordinal);
  Result (*name)(char* name, int size, Device device);
  Result (*uuid)(Uuid* uuid, Device device);
  Result (*memory)(std::size_t* bytes, Device device);
  Result (*attribute)(int* value, int attribute, Device device);

  bool complete() const {
    return init && driver_version && count && get && name && uuid && memory && attribute;
  }
};

Functions functions_of(const SharedLibrary& cuda) {
  return {cuda.find<Result(unsigned)>("cuInit"),
          cuda.find<Result(int*)>("cuDriverGetVersion"),
          cuda.find<Result(int*)>("cuDeviceGetCount"),
          cuda.find<Result(Device*, int)>("cuDeviceGet"),
          cuda.find<Result(char*, int, Device)>("cuDeviceGetName"),
          cuda.find<Result(Uuid*, Device)>("cuDeviceGetUuid_v2"),
          cuda.find<Result(std::size_t*, Device)>("cuDeviceTotalMem_v2"),
          cuda.find<Result(int*, int, Device)>("cuDeviceGetAttribute")};
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

Gpu describe(const Functions& cuda, int ordinal) {
  Gpu gpu;
  Device device = 0;
  std::array<char, 256> name{};
  Uuid uuid{};
  std::size_t bytes = 0;
  if (cuda.get(&device, ordinal) != kSuccess) return gpu;
  if (cuda.name(name.data(), name.size(), device) == kSuccess) gpu.name = name.data();
  if (cuda.uuid(&uuid, device) == kSuccess) gpu.uuid = text_of(uuid);
  if (cuda.memory(&bytes, device) == kSuccess) gpu.bytes = bytes;
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
  const auto cuda = functions_of(library);
  if (!cuda.complete()) {
    driver.missing = "libcuda.so.1 is too old or no driver: it lacks functions that CUDA 11.4 has";
    return driver;
  }
  cuda.driver_version(&driver.cuda_version);
  const Result started = cuda.init(0);
  if (started == kNoDevice) return driver;
  if (started != kSuccess) {
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
