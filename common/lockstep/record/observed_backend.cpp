#include <lockstep/record/decorated_backend.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/record/observed_work.h>
#include <lockstep/record/recorder.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::record {
namespace {

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

trace::Collective describe(const Call& call) {
  auto collective = describe(call.op, call.tensors, call.root);
  if (call.reduce != nullptr) collective.reduce_op = name_of(*call.reduce);
  return collective;
}

Completion completion_of(std::string_view backend) {
  if (backend == "gloo") return Completion::future;
  if (backend == "nccl") return Completion::future_result;
  return Completion::wait;  // another's Works may have neither, and there is no way to ask
}

class ObservedBackend final : public DecoratedBackend {
 public:
  ObservedBackend(BackendPtr backend, std::shared_ptr<trace::Writer> writer,
                  std::shared_ptr<void> kept)
      : DecoratedBackend(std::move(backend)),
        writer_(std::move(writer)),
        kept_(std::move(kept)),
        completion_(completion_of(inner()->getBackendName())),
        name_(getGroupUid().empty() ? "" : writer_->name_group(getGroupUid())) {}

  void setGroupUid(const std::string& uid) override {
    if (uid != getGroupUid()) name_ = writer_->name_group(uid);
    DecoratedBackend::setGroupUid(uid);
  }

  // Several operations as one. They are recorded one by one, and left together.
  void startCoalescing() override {
    inner()->startCoalescing();
    coalescing_ = true;
  }
  WorkPtr endCoalescing() override {
    coalescing_ = false;
    const Entered entered{writer_, std::exchange(coalesced_, {}), coalesced_last_};
    try {
      return leave_when_done(inner()->endCoalescing(), entered, completion_);
    } catch (...) {
      entered.failed(std::current_exception());
      throw;
    }
  }

  // Point to point. Counted apart: only two ranks take part.
  WorkPtr send(Tensors& tensors, int destination, int tag) override {
    return around_peer(describe("send", tensors, destination),
                       [&] { return inner()->send(tensors, destination, tag); });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return around_peer(describe("recv", tensors, source),
                       [&] { return inner()->recv(tensors, source, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return around_peer(describe("recvAnysource", tensors),
                       [&] { return inner()->recvAnysource(tensors, tag); });
  }

 private:
  WorkPtr around(const Call& call, Start start) override {
    return run(enter(describe(call), sequence_), completion_, start);
  }
  WorkPtr around_peer(trace::Collective operation, Start start) {
    pass_on();
    // Gloo's send and recv have no future, unlike its collectives.
    const auto completion = completion_ == Completion::future ? Completion::wait : completion_;
    return run(enter(std::move(operation), peer_sequence_), completion, start);
  }
  BackendPtr decorate_member(BackendPtr member, const StorePtr&) override {
    return observe(std::move(member), writer_, kept_);
  }

  Entered enter(trace::Collective collective, std::atomic<std::int64_t>& sequence) {
    if (const auto recorder = recorder_here()) recorder->collective_begins();
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

  WorkPtr run(const Entered& entered, Completion completion, Start start) {
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

  const std::shared_ptr<trace::Writer> writer_;
  const std::shared_ptr<void> kept_;
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

BackendPtr observe(BackendPtr backend, std::shared_ptr<trace::Writer> writer,
                   std::shared_ptr<void> kept) {
  return c10::make_intrusive<ObservedBackend>(std::move(backend), std::move(writer),
                                              std::move(kept));
}

}  // namespace lockstep::record
