// A libcuda.so.1 for tests of what is said about a machine's driver and GPUs, on machines without either. The
// environment says what it is to report:
//   LOCKSTEP_FAKE_CUDA   cuDriverGetVersion's number (13000)
//   LOCKSTEP_FAKE_INIT   what cuInit gives back (0)
//   LOCKSTEP_FAKE_GPUS   a word for each GPU: the byte its UUID is made of, a colon, its compute capability, as in
//                        "1:90 2:75"; CUDA_VISIBLE_DEVICES is left alone
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct FakeGpu {
  int uuid_byte = 0;
  int capability = 0;
};

int number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

std::vector<FakeGpu> gpus() {
  const char* text = std::getenv("LOCKSTEP_FAKE_GPUS");
  std::istringstream words(text != nullptr ? text : "");
  std::vector<FakeGpu> all;
  char colon = 0;
  for (FakeGpu gpu; words >> gpu.uuid_byte >> colon >> gpu.capability;) all.push_back(gpu);
  return all;
}

FakeGpu gpu(int device) {
  return gpus().at(static_cast<std::size_t>(device));
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return number("LOCKSTEP_FAKE_INIT", 0);
}
int cuDriverGetVersion(int* version) {
  *version = number("LOCKSTEP_FAKE_CUDA", 13000);
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(gpus().size());
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int size, int) {
  std::strncpy(name, "Pretend H200", static_cast<std::size_t>(size));
  return 0;
}
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  std::memset(uuid, gpu(device).uuid_byte, 16);
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{139} << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int capability = gpu(device).capability;
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return 0;
}

}  // extern "C"
