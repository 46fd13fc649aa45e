#include "faulty_backend.h"

namespace lockstep::mutants {

FaultyBackend::FaultyBackend(BackendPtr inner, std::shared_ptr<Tampering> tampering)
    : DecoratedBackend(std::move(inner)), tampering_(std::move(tampering)) {}

WorkPtr FaultyBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Tampering::AllReduce inner_call = [this](Tensors& t, const c10d::AllreduceOptions& o) {
    return DecoratedBackend::allreduce(t, o);
  };
  return tampering_->allreduce ? tampering_->allreduce(tensors, options, inner_call)
                               : inner_call(tensors, options);
}

WorkPtr FaultyBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Tampering::Broadcast inner_call = [this](Tensors& t, const c10d::BroadcastOptions& o) {
    return DecoratedBackend::broadcast(t, o);
  };
  return tampering_->broadcast ? tampering_->broadcast(tensors, options, inner_call)
                               : inner_call(tensors, options);
}

WorkPtr FaultyBackend::send(Tensors& tensors, int to, int tag) {
  return inner()->send(tensors, to, tag);
}

WorkPtr FaultyBackend::recv(Tensors& tensors, int from, int tag) {
  return inner()->recv(tensors, from, tag);
}

WorkPtr FaultyBackend::recvAnysource(Tensors& tensors, int tag) {
  return inner()->recvAnysource(tensors, tag);
}

WorkPtr FaultyBackend::around(const record::Call&, Start start) {
  return start();
}

BackendPtr FaultyBackend::decorate_member(BackendPtr member, const StorePtr&) {
  return member;
}

WorkPtr done(const Tensors& tensors) {
  auto result =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  result->markCompleted(c10::IValue(tensors));
  return c10d::Work::create_from_future(result);
}

}  // namespace lockstep::mutants
