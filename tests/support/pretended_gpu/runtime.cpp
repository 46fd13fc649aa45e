// CUDA's runtime: devices, streams, events. Streams are those that wait for no other unasked.
#include <lockstep/gpu/driver.h>

#include <map>

#include "device.h"

using namespace pretended;

namespace {

// A place in a stream: the last one recorded. Before, there is nothing to wait for.
struct Event {
  MarkPtr recorded;
};

// By handle, which is a number: 1, 2, ... Never destroyed, as the streams' threads are not.
template <class Handle, class Value>
class Handles {
 public:
  explicit Handles(const char* kind) : kind_(kind) {}
  Handle add(Value value) {
    const std::lock_guard lock(mutex_);
    const auto handle = reinterpret_cast<Handle>(++last_);
    values_.emplace(handle, std::move(value));
    return handle;
  }
  Value& at(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(handle);
    if (found == values_.end()) refuse(std::string("this is no ") + kind_ + ", or no more");
    return found->second;
  }
  Value take(Handle handle) {
    Value value = std::move(at(handle));
    const std::lock_guard lock(mutex_);
    values_.erase(handle);
    return value;
  }

 private:
  const char* kind_;
  std::mutex mutex_;
  std::map<Handle, Value> values_;
  std::uintptr_t last_ = 0;
};

auto& streams() {
  static auto& all = *new Handles<cudaStream_t, std::shared_ptr<Queue>>("stream");
  return all;
}
auto& events() {
  static auto& all = *new Handles<cudaEvent_t, Event>("event");
  return all;
}

int gpus() {
  static const int count = lockstep::gpu::gpus_here();
  return count;
}

int device_in_use = 0;

}  // namespace

std::shared_ptr<Queue> pretended::queue_of(cudaStream_t stream) {
  if (stream == nullptr) refuse("the default stream is not pretended");
  return streams().at(stream);
}

int pretended::current_device() {
  return device_in_use;
}

extern "C" {

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpus()) return cudaErrorInvalidDevice;
  device_in_use = device;
  counts().used = true;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_in_use;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount)
    refuse("device attribute " + std::to_string(attribute) + " is not pretended");
  *value = 132;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  wait_for_device();
  return cudaSuccess;
}

// What is wrong is refused where it is called, so there is never one.
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking)
    refuse("streams that wait for the default stream are not pretended");
  *stream = streams().add(Queue::open());
  ++counts().streams;
  return cudaSuccess;
}

// What the stream was given is done all the same; nobody waits for that.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams().take(stream)->close();
  --counts().streams;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  queue_of(stream)->mark()->wait();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const auto recorded = events().at(event).recorded;
  if (recorded) queue_of(stream)->give([recorded] { recorded->wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = events().add({});
  ++counts().events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  events().take(event);
  --counts().events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (is_to_fail("cudaEventRecord")) return cudaErrorLaunchFailure;
  events().at(event).recorded = queue_of(stream)->mark();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto recorded = events().at(event).recorded;
  return recorded && !recorded->is_set() ? cudaErrorNotReady : cudaSuccess;
}

}  // extern "C"
