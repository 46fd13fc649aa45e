// A backend around another one: what observing and checking have in common.
#pragma once

#include <c10/util/FunctionRef.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/record/torch_version.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace lockstep::record {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A collective, as it is called. Refers to the caller's arguments.
struct Call {
  const char* op = "";  // as c10d::Backend names it
  // This rank's own: the inputs, but for scatter and reduce_scatter, whose inputs are lists, the
  // outputs.
  c10::ArrayRef<at::Tensor> tensors = {};
  std::int64_t root = -1;                  // -1: none
  const c10d::ReduceOp* reduce = nullptr;  // null: none
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  c10::ArrayRef<at::Tensor> outputs = {};  // those of a kind with `tensors` on every rank
  // Each rank sends or receives a part of its own. The i-th goes to or comes from rank i; where one
  // of the lists is empty, the part is in `tensors`.
  bool in_parts = false;
  c10::ArrayRef<at::Tensor> sends = {}, receives = {};
  // alltoall_base's, whose parts are rows of tensors.front() and outputs.front(); null otherwise.
  const std::vector<std::int64_t>* input_splits = nullptr;
  const std::vector<std::int64_t>* output_splits = nullptr;
};

// "sum", "avg", ...
std::string name_of(const c10d::ReduceOp& op);

// Forwards every virtual of c10d::Backend to the inner backend, all collectives through around().
// Left to who derives: send, recv, recvAnysource. A test compares the virtuals overridden with those
// that c10d::Backend declares (2.14 and 2.15 add some).
class DecoratedBackend : public c10d::Backend {
 public:
  explicit DecoratedBackend(BackendPtr inner);

  // What it is.
  const std::string getBackendName() const override;
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsSplitting() const override;
  bool supportsCoalescing() const override;
  bool supportsTimeEstimation() const override;
  bool supportsShrinking() const override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setGroupUid(const std::string& uid) override;
  void setSequenceNumberForGroup() override;
  std::uint64_t getSequenceNumberForGroup() override;

  // Groups made from this one.
  BackendPtr shrink(const std::vector<std::int64_t>& ranks, int flags,
                    const c10::intrusive_ptr<Options>& options) override;
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override;
  BackendPtr merge(const StorePtr& store, const c10::intrusive_ptr<Options>& options,
                   const int& rank, const int& size) override;

  // Collectives.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Several operations as one: each goes through around() by itself.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Forwarded as they are: they enter nothing that a peer waits for.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override;
  void eagerConnectSingleDevice(at::Device device) override;
  c10d::ErrorType getError() override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  void abort() override;
  void shutdown() override;

#if LOCKSTEP_TORCH_2_14
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                        const c10d::GatherOptions& options) override;
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override;
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t id) override;
#endif
#if LOCKSTEP_TORCH_2_15
  bool isInitialized() override;
  bool supportsAbortHooks() const override;
  bool supportsCompletionHooks() const override;
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(std::int64_t id) override;
#endif

 protected:
  // Starts a collective in the inner backend; gives its work, null where that has none.
  using Start = c10::function_ref<WorkPtr()>;

  // What is done about a collective. Calls start(), or throws.
  virtual WorkPtr around(const Call& call, Start start) = 0;
  // The same decoration for a group made from this one. `store` is null where there is none.
  virtual BackendPtr decorate_member(BackendPtr member, const StorePtr& store) = 0;

  const BackendPtr& inner() const {
    return inner_;
  }
  // A process group sets the description and the device through setters that are not virtual: call
  // this before an operation is entered. around() is called after it.
  void pass_on();

 private:
  WorkPtr enter(const Call& call, Start start);
  BackendPtr member(BackendPtr backend, const StorePtr& store);

  const BackendPtr inner_;
};

}  // namespace lockstep::record
