// Between a program and its backend: changes collectives on their way. It sits above record::observe, so that the
// trace holds what a program with that mistake would have called.
#pragma once

#include <lockstep/record/decorated_backend.h>

#include <functional>
#include <memory>

namespace lockstep::mutants {

using record::Tensors;
using record::WorkPtr;

// Whoever is set here gets the call, and what would be done about it. Filled in by a mutation.
struct Tampering {
  using AllReduce = std::function<WorkPtr(Tensors&, const c10d::AllreduceOptions&)>;
  using Broadcast = std::function<WorkPtr(Tensors&, const c10d::BroadcastOptions&)>;
  std::function<WorkPtr(Tensors&, c10d::AllreduceOptions, const AllReduce&)> allreduce;
  std::function<WorkPtr(Tensors&, c10d::BroadcastOptions, const Broadcast&)> broadcast;
};

class FaultyBackend : public record::DecoratedBackend {
 public:
  FaultyBackend(BackendPtr inner, std::shared_ptr<Tampering> tampering);

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 protected:
  WorkPtr around(const record::Call& call, Start start) override;
  BackendPtr decorate_member(BackendPtr member, const StorePtr& store) override;

 private:
  const std::shared_ptr<Tampering> tampering_;
};

// Work that is done, with these tensors as they are for its result.
WorkPtr done(const Tensors& tensors);

}  // namespace lockstep::mutants
