#include <lockstep/record/decorated_backend.h>

#include <utility>

namespace lockstep::record {
namespace {

// Of a list for each device, the one device's. Ranks that take no part in it give none.
c10::ArrayRef<at::Tensor> first_of(const std::vector<Tensors>& lists) {
  return lists.empty() ? c10::ArrayRef<at::Tensor>() : c10::ArrayRef<at::Tensor>(lists.front());
}

}  // namespace

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

DecoratedBackend::DecoratedBackend(BackendPtr inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {
  setBoundDeviceId(inner_->getBoundDeviceId());
  setGroupDesc(inner_->getGroupDesc());
  Backend::setGroupUid(inner_->getGroupUid());
}

const std::string DecoratedBackend::getBackendName() const {
  return inner_->getBackendName();
}

c10::intrusive_ptr<c10d::Backend::Options> DecoratedBackend::getBackendOptions() {
  return inner_->getBackendOptions();
}

bool DecoratedBackend::supportsSplitting() const {
  return inner_->supportsSplitting();
}

bool DecoratedBackend::supportsCoalescing() const {
  return inner_->supportsCoalescing();
}

// Operations that are only estimated are no collectives.
bool DecoratedBackend::supportsTimeEstimation() const {
  return false;
}

bool DecoratedBackend::supportsShrinking() const {
  return inner_->supportsShrinking();
}

void DecoratedBackend::setTimeout(std::chrono::milliseconds timeout) {
  inner_->setTimeout(timeout);
}

void DecoratedBackend::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  inner_->setGroupUid(uid);
}

void DecoratedBackend::setSequenceNumberForGroup() {
  inner_->setSequenceNumberForGroup();
}

std::uint64_t DecoratedBackend::getSequenceNumberForGroup() {
  return inner_->getSequenceNumberForGroup();
}

BackendPtr DecoratedBackend::shrink(const std::vector<std::int64_t>& ranks, int flags,
                                    const c10::intrusive_ptr<Options>& options) {
  return member(inner_->shrink(ranks, flags, options), nullptr);
}

BackendPtr DecoratedBackend::split(const StorePtr& store, const std::vector<int>& ranks,
                                   const c10::intrusive_ptr<Options>& options) {
  pass_on();
  return member(inner_->split(store, ranks, options), store);
}

BackendPtr DecoratedBackend::merge(const StorePtr& store,
                                   const c10::intrusive_ptr<Options>& options, const int& rank,
                                   const int& size) {
  return member(inner_->merge(store, options, rank, size), store);
}

WorkPtr DecoratedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return enter(
      {.op = "broadcast", .tensors = tensors, .root = options.rootRank, .timeout = options.timeout},
      [&] { return inner_->broadcast(tensors, options); });
}

WorkPtr DecoratedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return enter({.op = "allreduce",
                .tensors = tensors,
                .reduce = &options.reduceOp,
                .timeout = options.timeout},
               [&] { return inner_->allreduce(tensors, options); });
}

WorkPtr DecoratedBackend::allreduce_sparse(Tensors& tensors,
                                           const c10d::AllreduceOptions& options) {
  return enter({.op = "allreduce_sparse",
                .tensors = tensors,
                .reduce = &options.reduceOp,
                .timeout = options.timeout},
               [&] { return inner_->allreduce_sparse(tensors, options); });
}

WorkPtr DecoratedBackend::allreduce_coalesced(Tensors& tensors,
                                              const c10d::AllreduceCoalescedOptions& options) {
  return enter({.op = "allreduce_coalesced",
                .tensors = tensors,
                .reduce = &options.reduceOp,
                .timeout = options.timeout},
               [&] { return inner_->allreduce_coalesced(tensors, options); });
}

WorkPtr DecoratedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return enter({.op = "reduce",
                .tensors = tensors,
                .root = options.rootRank,
                .reduce = &options.reduceOp,
                .timeout = options.timeout},
               [&] { return inner_->reduce(tensors, options); });
}

WorkPtr DecoratedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                    const c10d::AllgatherOptions& options) {
  return enter({.op = "allgather",
                .tensors = inputs,
                .timeout = options.timeout,
                .in_parts = true,
                .receives = first_of(outputs)},
               [&] { return inner_->allgather(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                          const c10d::AllgatherOptions& options) {
  return enter(
      {.op = "_allgather_base", .tensors = input, .timeout = options.timeout, .outputs = output},
      [&] { return inner_->_allgather_base(output, input, options); });
}

WorkPtr DecoratedBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  return enter({.op = "allgather_coalesced",
                .tensors = inputs,
                .timeout = options.timeout,
                .outputs = first_of(outputs)},
               [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                          const c10d::AllgatherOptions& options) {
  return enter({.op = "allgather_into_tensor_coalesced",
                .tensors = inputs,
                .timeout = options.timeout,
                .outputs = outputs},
               [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::GatherOptions& options) {
  return enter({.op = "gather",
                .tensors = inputs,
                .root = options.rootRank,
                .timeout = options.timeout,
                .in_parts = true,
                .receives = first_of(outputs)},
               [&] { return inner_->gather(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                  const c10d::ScatterOptions& options) {
  return enter({.op = "scatter",
                .tensors = outputs,
                .root = options.rootRank,
                .timeout = options.timeout,
                .in_parts = true,
                .sends = first_of(inputs)},
               [&] { return inner_->scatter(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                         const c10d::ReduceScatterOptions& options) {
  return enter({.op = "reduce_scatter",
                .tensors = outputs,
                .reduce = &options.reduceOp,
                .timeout = options.timeout,
                .in_parts = true,
                .sends = first_of(inputs)},
               [&] { return inner_->reduce_scatter(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                               const c10d::ReduceScatterOptions& options) {
  return enter({.op = "_reduce_scatter_base",
                .tensors = input,
                .reduce = &options.reduceOp,
                .timeout = options.timeout,
                .outputs = output},
               [&] { return inner_->_reduce_scatter_base(output, input, options); });
}

WorkPtr DecoratedBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return enter({.op = "reduce_scatter_tensor_coalesced",
                .tensors = inputs,
                .reduce = &options.reduceOp,
                .timeout = options.timeout,
                .outputs = outputs},
               [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                        std::vector<std::int64_t>& output_splits,
                                        std::vector<std::int64_t>& input_splits,
                                        const c10d::AllToAllOptions& options) {
  return enter(
      {.op = "alltoall_base",
       .tensors = input,
       .timeout = options.timeout,
       .outputs = output,
       .in_parts = true,
       .input_splits = &input_splits,
       .output_splits = &output_splits},
      [&] { return inner_->alltoall_base(output, input, output_splits, input_splits, options); });
}

WorkPtr DecoratedBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                   const c10d::AllToAllOptions& options) {
  return enter({.op = "alltoall",
                .tensors = inputs,
                .timeout = options.timeout,
                .in_parts = true,
                .sends = inputs,
                .receives = outputs},
               [&] { return inner_->alltoall(outputs, inputs, options); });
}

WorkPtr DecoratedBackend::barrier(const c10d::BarrierOptions& options) {
  return enter({.op = "barrier", .timeout = options.timeout},
               [&] { return inner_->barrier(options); });
}

void DecoratedBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  enter({.op = "monitoredBarrier", .timeout = options.timeout}, [&] {
    inner_->monitoredBarrier(options, wait_all_ranks);
    return WorkPtr();
  });
}

void DecoratedBackend::startCoalescing() {
  inner_->startCoalescing();
}

WorkPtr DecoratedBackend::endCoalescing() {
  return inner_->endCoalescing();
}

void DecoratedBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  onCompletionHook_ = hook;  // for hasHooks(), which is not virtual
  inner_->registerOnCompletionHook(std::move(hook));
}

void DecoratedBackend::waitForPendingWorks() {
  inner_->waitForPendingWorks();
}

void DecoratedBackend::enableCollectivesTiming() {
  inner_->enableCollectivesTiming();
}

void DecoratedBackend::eagerConnectSingleDevice(at::Device device) {
  pass_on();
  inner_->eagerConnectSingleDevice(device);
}

c10d::ErrorType DecoratedBackend::getError() {
  return inner_->getError();
}
std::shared_ptr<c10::Allocator> DecoratedBackend::getMemAllocator() {
  return inner_->getMemAllocator();
}

at::Tensor DecoratedBackend::allocateTensor(long size, at::TensorOptions options) {
  return inner_->allocateTensor(size, options);
}

bool DecoratedBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  return inner_->supportsTensorAlloc(device);
}

void DecoratedBackend::abort() {
  inner_->abort();
}

void DecoratedBackend::shutdown() {
  inner_->shutdown();
}

#if LOCKSTEP_TORCH_2_14
WorkPtr DecoratedBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                        const c10d::GatherOptions& options) {
  return enter({.op = "gather_single",
                .tensors = input,
                .root = options.rootRank,
                .timeout = options.timeout},
               [&] { return inner_->gather_single(output, input, options); });
}

void DecoratedBackend::addEphemeralTimeout(const std::chrono::milliseconds& timeout) {
  inner_->addEphemeralTimeout(timeout);
}

void DecoratedBackend::registerAbortHook(std::int64_t id, c10d::AbortHook hook) {
  inner_->registerAbortHook(id, std::move(hook));
}

void DecoratedBackend::unregisterAbortHook(std::int64_t id) {
  inner_->unregisterAbortHook(id);
}
#endif

#if LOCKSTEP_TORCH_2_15
bool DecoratedBackend::isInitialized() {
  return inner_->isInitialized();
}

bool DecoratedBackend::supportsAbortHooks() const {
  return inner_->supportsAbortHooks();
}

bool DecoratedBackend::supportsCompletionHooks() const {
  return inner_->supportsCompletionHooks();
}

void DecoratedBackend::registerCompletionHook(std::int64_t id, c10d::CompletionHook hook) {
  inner_->registerCompletionHook(id, std::move(hook));
}

void DecoratedBackend::unregisterCompletionHook(std::int64_t id) {
  inner_->unregisterCompletionHook(id);
}
#endif

void DecoratedBackend::pass_on() {
  if (inner_->getGroupDesc() != getGroupDesc()) inner_->setGroupDesc(getGroupDesc());
  if (inner_->getBoundDeviceId() != getBoundDeviceId())
    inner_->setBoundDeviceId(getBoundDeviceId());
}

WorkPtr DecoratedBackend::enter(const Call& call, Start start) {
  pass_on();
  return around(call, start);
}

// A rank that is not in the new group gets none.
BackendPtr DecoratedBackend::member(BackendPtr backend, const StorePtr& store) {
  return backend ? decorate_member(std::move(backend), store) : nullptr;
}

}  // namespace lockstep::record
