// Kernels: those of common/lockstep/gpu/kernels by their names, each with what it does, on the CPU.
#include <cxxabi.h>
#include <dlfcn.h>
#include <lockstep/gpu/kernels/bucket_plan.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "device.h"

using namespace pretended;

namespace {

using lockstep::gpu::Table;

using Work = std::function<void()>;
// What a launch with these arguments is to do. The arguments are the caller's, and are copied.
using Begin = Work (*)(void** arguments);

struct Scale {
  float factor;
  float operator()(float value) const { return value * factor; }
};
struct Keep {
  std::uint32_t operator()(std::uint32_t value) const { return value; }
};

Work wait(void** arguments) {
  const std::chrono::nanoseconds time(*static_cast<unsigned long long*>(arguments[0]));
  return [time] { std::this_thread::sleep_for(time); };
}

template <class T, class Change>
void copy(const void* from, void* to, std::int64_t count, Change change) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
  const auto* read = reinterpret_cast<const T*>(memory_of(from, bytes));
  auto* write = reinterpret_cast<T*>(memory_of(to, bytes));
  for (std::int64_t i = 0; i < count; ++i) write[i] = change(read[i]);
}

template <class T, bool to_bucket, class Change>
Work move(void** arguments) {
  const auto table = std::make_shared<const Table>(*static_cast<const Table*>(arguments[0]));
  auto* bucket = *static_cast<T**>(arguments[1]);
  const auto change = *static_cast<const Change*>(arguments[2]);
  return [table, bucket, change] {
    for (std::int64_t number = 0; number < table->chunks; ++number) {
      const auto piece = lockstep::gpu::chunk(*table, number);
      const auto& span = table->span[piece.span];
      auto* in_tensor = reinterpret_cast<T*>(span.tensor) + piece.begin;
      auto* in_bucket = bucket + span.offset + piece.begin;
      if (to_bucket)
        copy<T>(in_tensor, in_bucket, piece.count, change);
      else
        copy<T>(in_bucket, in_tensor, piece.count, change);
    }
  };
}

#define OURS "lockstep::gpu::(anonymous namespace)::"
const std::map<std::string, Begin>& known() {
  static const auto& all = *new std::map<std::string, Begin>{
      {OURS "wait(unsigned long long)", wait},
      {"void " OURS "move<float, true, " OURS "Scale>(lockstep::gpu::Table, float*, " OURS "Scale)",
       move<float, true, Scale>},
      {"void " OURS "move<unsigned int, false, " OURS
       "Keep>(lockstep::gpu::Table, unsigned int*, " OURS "Keep)",
       move<std::uint32_t, false, Keep>}};
  return all;
}

struct Kernel {
  const char* symbol;
  bool loaded = false;
};
struct Kernels {
  std::mutex mutex;
  std::map<const void*, Kernel> registered;  // by the function that launches it
};
Kernels& kernels() {
  static auto& all = *new Kernels;
  return all;
}

Begin begin_of(const Kernel& kernel) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(kernel.symbol, nullptr, nullptr, &status), std::free);
  const std::string text = name ? name.get() : kernel.symbol;
  const auto found = known().find(text);
  if (found == known().end()) refuse("the kernel " + text + " is not pretended");
  return found->second;
}

Kernel& kernel_of(const void* function) {
  const auto found = kernels().registered.find(function);
  if (found == kernels().registered.end()) refuse("a kernel is launched that nobody registered");
  return found->second;
}

// The first launch loads the kernel. CUDA may wait for the device to do so: here it always does.
cudaError_t launch(const void* function, void** arguments, cudaStream_t stream) {
  const std::lock_guard lock(kernels().mutex);
  auto& kernel = kernel_of(function);
  if (!std::exchange(kernel.loaded, true)) wait_for_device();
  queue_of(stream)->give(begin_of(kernel)(arguments));
  ++counts().kernels;
  return cudaSuccess;
}

// Between the brackets of a launch and its arguments.
struct Configuration {
  dim3 grid, block;
  std::size_t shared = 0;
  void* stream = nullptr;
};
thread_local Configuration configuration;

}  // namespace

extern "C" {

// A kernel's handle is the function that launches it. The runtime is told as well: it has what was registered before.
void __cudaRegisterFunction(void** handle, const char* function, char* device_function,
                            const char* symbol, int threads, uint3* thread, uint3* block,
                            dim3* block_size, dim3* grid_size, int* warp_size) {
  {
    const std::lock_guard lock(kernels().mutex);
    kernels().registered[function] = {symbol};
  }
  static const auto real = reinterpret_cast<decltype(&__cudaRegisterFunction)>(
      ::dlsym(RTLD_NEXT, "__cudaRegisterFunction"));
  real(handle, function, device_function, symbol, threads, thread, block, block_size, grid_size,
       warp_size);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  std::memcpy(stream, &configuration.stream, sizeof(void*));
  return cudaSuccess;
}

// As nvcc of CUDA 13 launches, and as older ones do.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, std::size_t,
                               cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  return launch(function, arguments, stream);
}

}  // extern "C"
