// The library lockstep_nccl: all that needs torch_cuda. Loaded by nccl_loader.cpp, linked by
// nothing.
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <lockstep/dist/backends.h>
#include <lockstep/dist/ends_within.h>
#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace lockstep::detail {
namespace {

// Of the NCCL that torch_cuda has loaded, which need not be the one whose header PyTorch was compiled with. Where NCCL
// is inside torch_cuda nobody exports it, and the two are one.
int version_of_nccl() {
  int loaded = 0;
  const auto get =
      reinterpret_cast<decltype(&ncclGetVersion)>(::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  if (get != nullptr && get(&loaded) == ncclSuccess) return loaded;
  const auto version = torch::cuda::nccl::version();  // major, minor, patch of 16 bits each
  return static_cast<int>((version >> 32) * 10000 + (version >> 16 & 0xffff) * 100 +
                          (version & 0xffff));
}

// Makes the communicator now, as Python does for a group with a device_id: an error is of init_process_group, not
// of the first operation. NCCL's own set-up has no timeout and cannot be aborted, so it has a thread that is left
// behind where it is late, with the group in its hands.
void connect(const c10::intrusive_ptr<c10d::ProcessGroupNCCL>& backend, c10::Device device,
             std::chrono::milliseconds timeout) {
  const bool connected = ends_within(timeout, [backend, device] {
    c10::cuda::set_device(device.index());
    backend->eagerConnectSingleDevice(device);
  });
  if (!connected)
    throw std::runtime_error(
        "all ranks were there, and NCCL has not connected them: has one ended since? Can they "
        "reach "
        "each other through the interface that NCCL_SOCKET_IFNAME names? NCCL_DEBUG=INFO tells");
}

BackendPtr make(const BackendRequest& request) {
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(request.ranks.device));
  c10::cuda::set_device(device.index());
  auto options = c10d::ProcessGroupNCCL::Options::create(request.high_priority_stream);
  options->timeout = request.timeout;
  options->group_name = request.name;
  options->global_ranks_in_group.assign(request.ranks.global.begin(), request.ranks.global.end());
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.ranks.rank,
                                                             request.ranks.world_size, options);
  backend->setBoundDeviceId(device);
  connect(backend, device, request.timeout);
  return backend;
}

}  // namespace
}  // namespace lockstep::detail

extern "C" {

__attribute__((visibility("default"))) int lockstep_nccl_version() {
  return lockstep::detail::version_of_nccl();
}

__attribute__((visibility("default"))) void lockstep_nccl_make(
    const lockstep::detail::BackendRequest& request, lockstep::BackendPtr& backend) {
  backend = lockstep::detail::make(request);
}

}  // extern "C"
