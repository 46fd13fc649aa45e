#include <lockstep/record/observed_backend.h>
#include <lockstep/record/observed_work.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#define LOCKSTEP_TORCH_2_15 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)

namespace lockstep::record {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::string name_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return "sum";
    case c10d::ReduceOp::AVG:
      return "avg";
    case c10d::ReduceOp::PRODUCT:
      return "product";
    case c10d::ReduceOp::MIN:
      return "min";
    case c10d::ReduceOp::MAX:
      return "max";
    case c10d::ReduceOp::BAND:
      return "band";
    case c10d::ReduceOp::BOR:
      return "bor";
    case c10d::ReduceOp::BXOR:
      return "bxor";
    case c10d::ReduceOp::PREMUL_SUM:
      return "premul_sum";
    default:
      return "other";
  }
}

trace::Collective describe(const char* op, c10::ArrayRef<at::Tensor> tensors,
                           std::int64_t root = -1) {
  trace::Collective collective;
  collective.op = op;
  collective.root = root;
  if (!tensors.empty()) collective.dtype = c10::getDtypeNames(tensors.front().scalar_type()).first;
  collective.sizes.reserve(tensors.size());
  for (const auto& tensor : tensors) collective.sizes.push_back(tensor.numel());
  return collective;
}

trace::Collective describe(const char* op, c10::ArrayRef<at::Tensor> tensors,
                           const c10d::ReduceOp& reduce, std::int64_t root = -1) {
  auto collective = describe(op, tensors, root);
  collective.reduce_op = name_of(reduce);
  return collective;
}

Completion completion_of(std::string_view backend) {
  if (backend == "gloo") return Completion::future;
  if (backend == "nccl") return Completion::future_result;
  return Completion::wait;  // another's Works may have neither, and there is no way to ask
}

// A test compares the virtuals overridden here with those that c10d::Backend declares. 2.15 adds
// some.
class ObservedBackend final : public c10d::Backend {
 public:
  ObservedBackend(BackendPtr inner, std::shared_ptr<trace::Writer> writer)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        writer_(std::move(writer)),
        completion_(completion_of(inner_->getBackendName())) {
    setBoundDeviceId(inner_->getBoundDeviceId());
    setGroupDesc(inner_->getGroupDesc());
    Backend::setGroupUid(inner_->getGroupUid());
    name_ = getGroupUid().empty() ? "" : writer_->name_group(getGroupUid());
  }

  // What it is.
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  bool supportsSplitting() const override { return inner_->supportsSplitting(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  // Operations that are only estimated are no collectives.
  bool supportsTimeEstimation() const override { return false; }
  bool supportsShrinking() const override { return inner_->supportsShrinking(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void setGroupUid(const std::string& uid) override {
    if (uid != getGroupUid()) name_ = writer_->name_group(uid);
    Backend::setGroupUid(uid);
    inner_->setGroupUid(uid);
  }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  std::uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }

  // Groups made from this one are observed too. A rank that is not in one gets none.
  BackendPtr shrink(const std::vector<std::int64_t>& ranks, int flags,
                    const c10::intrusive_ptr<Options>& options) override {
    return observe_member(inner_->shrink(ranks, flags, options));
  }
  BackendPtr split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                   const c10::intrusive_ptr<Options>& options) override {
    pass_on();
    return observe_member(inner_->split(store, ranks, options));
  }
  BackendPtr merge(const c10::intrusive_ptr<c10d::Store>& store,
                   const c10::intrusive_ptr<Options>& options, const int& rank,
                   const int& size) override {
    return observe_member(inner_->merge(store, options, rank, size));
  }

  // Collectives.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return watch(describe("broadcast", tensors, options.rootRank),
                 [&] { return inner_->broadcast(tensors, options); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return watch(describe("allreduce", tensors, options.reduceOp),
                 [&] { return inner_->allreduce(tensors, options); });
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return watch(describe("allreduce_sparse", tensors, options.reduceOp),
                 [&] { return inner_->allreduce_sparse(tensors, options); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return watch(describe("allreduce_coalesced", tensors, options.reduceOp),
                 [&] { return inner_->allreduce_coalesced(tensors, options); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return watch(describe("reduce", tensors, options.reduceOp, options.rootRank),
                 [&] { return inner_->reduce(tensors, options); });
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return watch(describe("allgather", inputs),
                 [&] { return inner_->allgather(outputs, inputs, options); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return watch(describe("_allgather_base", input),
                 [&] { return inner_->_allgather_base(output, input, options); });
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override {
    return watch(describe("allgather_coalesced", inputs),
                 [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    return watch(describe("allgather_into_tensor_coalesced", inputs),
                 [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return watch(describe("gather", inputs, options.rootRank),
                 [&] { return inner_->gather(outputs, inputs, options); });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override {
    return watch(describe("scatter", outputs, options.rootRank),
                 [&] { return inner_->scatter(outputs, inputs, options); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return watch(describe("reduce_scatter", outputs, options.reduceOp),
                 [&] { return inner_->reduce_scatter(outputs, inputs, options); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return watch(describe("_reduce_scatter_base", input, options.reduceOp),
                 [&] { return inner_->_reduce_scatter_base(output, input, options); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return watch(describe("reduce_scatter_tensor_coalesced", inputs, options.reduceOp),
                 [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return watch(describe("alltoall_base", input), [&] {
      return inner_->alltoall_base(output, input, output_splits, input_splits, options);
    });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return watch(describe("alltoall", inputs),
                 [&] { return inner_->alltoall(outputs, inputs, options); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return watch(describe("barrier", {}), [&] { return inner_->barrier(options); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    const Entered entered = enter(describe("monitoredBarrier", {}), sequence_);
    try {
      inner_->monitoredBarrier(options, wait_all_ranks);
    } catch (...) {
      entered.failed(std::current_exception());
      throw;
    }
    entered.done();
  }

  // Several operations as one. They are recorded one by one, and left together.
  void startCoalescing() override {
    inner_->startCoalescing();
    coalescing_ = true;
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    const Entered entered{writer_, std::exchange(coalesced_, {}), coalesced_last_};
    try {
      return leave_when_done(inner_->endCoalescing(), entered, completion_);
    } catch (...) {
      entered.failed(std::current_exception());
      throw;
    }
  }

  // Point to point. Counted apart: only two ranks take part.
  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return watch_peer(describe("send", tensors, destination),
                      [&] { return inner_->send(tensors, destination, tag); });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return watch_peer(describe("recv", tensors, source),
                      [&] { return inner_->recv(tensors, source, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return watch_peer(describe("recvAnysource", tensors),
                      [&] { return inner_->recvAnysource(tensors, tag); });
  }

  // Forwarded as they are: they enter nothing that a peer waits for.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    onCompletionHook_ = hook;  // for hasHooks(), which is not virtual
    inner_->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { inner_->waitForPendingWorks(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void eagerConnectSingleDevice(at::Device device) override {
    pass_on();
    inner_->eagerConnectSingleDevice(device);
  }
  c10d::ErrorType getError() override { return inner_->getError(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return inner_->getMemAllocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return inner_->allocateTensor(size, options);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return inner_->supportsTensorAlloc(device);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

#if LOCKSTEP_TORCH_2_15
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,
                        const c10d::GatherOptions& options) override {
    return watch(describe("gather_single", input, options.rootRank),
                 [&] { return inner_->gather_single(output, input, options); });
  }
  bool isInitialized() override {
    return inner_->isInitialized();
  }
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override {
    inner_->addEphemeralTimeout(timeout);
  }
  bool supportsAbortHooks() const override {
    return inner_->supportsAbortHooks();
  }
  void registerAbortHook(std::int64_t id, c10d::AbortHook hook) override {
    inner_->registerAbortHook(id, std::move(hook));
  }
  void unregisterAbortHook(std::int64_t id) override {
    inner_->unregisterAbortHook(id);
  }
  bool supportsCompletionHooks() const override {
    return inner_->supportsCompletionHooks();
  }
  void registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) override {
    inner_->registerCompletionHook(id, std::move(hook));
  }
  void unregisterCompletionHook(std::int64_t id) override {
    inner_->unregisterCompletionHook(id);
  }
#endif

 private:
  BackendPtr observe_member(BackendPtr backend) {
    return backend ? observe(std::move(backend), writer_) : nullptr;
  }

  Entered enter(trace::Collective collective, std::atomic<std::int64_t>& sequence) {
    pass_on();
    collective.sequence = ++sequence;
    collective.group = name_;
    const auto handle = writer_->enter(collective);
    note_entered();
    return {writer_,
            {handle},
            {.rank = getRank(),
             .group = std::move(collective.group),
             .operation = std::move(collective.op),
             .sequence = collective.sequence}};
  }

  // A process group sets these two through setters that are not virtual.
  void pass_on() {
    if (inner_->getGroupDesc() != getGroupDesc()) inner_->setGroupDesc(getGroupDesc());
    if (inner_->getBoundDeviceId() != getBoundDeviceId())
      inner_->setBoundDeviceId(getBoundDeviceId());
  }

  template <class Start>
  WorkPtr watch(trace::Collective collective, const Start& start) {
    return run(enter(std::move(collective), sequence_), completion_, start);
  }
  template <class Start>
  WorkPtr watch_peer(trace::Collective operation, const Start& start) {
    // Gloo's send and recv have no future, unlike its collectives.
    const auto completion = completion_ == Completion::future ? Completion::wait : completion_;
    return run(enter(std::move(operation), peer_sequence_), completion, start);
  }

  template <class Start>
  WorkPtr run(const Entered& entered, Completion completion, const Start& start) {
    try {
      auto work = start();
      if (!coalescing_) return leave_when_done(std::move(work), entered, completion);
      coalesced_.push_back(entered.handles.front());
      coalesced_last_ = entered.operation;
      return work;
    } catch (...) {
      entered.failed(std::current_exception());
      throw;
    }
  }

  const BackendPtr inner_;
  const std::shared_ptr<trace::Writer> writer_;
  const Completion completion_;
  std::string name_;  // of the group, in the trace; the process group gives it before the first use
  std::atomic<std::int64_t> sequence_{0};
  std::atomic<std::int64_t> peer_sequence_{0};
  // Coalescing is a thread's business, as in the backends: one thread at a time uses them.
  bool coalescing_ = false;
  std::vector<std::uint64_t> coalesced_;
  FailedCollective coalesced_last_;
};

}  // namespace

BackendPtr observe(BackendPtr backend, std::shared_ptr<trace::Writer> writer) {
  return c10::make_intrusive<ObservedBackend>(std::move(backend), std::move(writer));
}

}  // namespace lockstep::record
