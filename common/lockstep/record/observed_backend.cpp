#include <ATen/core/ivalue_inl.h>
#include <lockstep/base/clock.h>
#include <lockstep/record/decorated_backend.h>
#include <lockstep/record/failed_collective.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/record/recorder.h>
#include <lockstep/record/torch_version.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace lockstep::record {
namespace {

// ---- when an operation is over, as its Work tells it ----

// The records of operations that end together: one, or those of a coalesced group.
struct Entered {
  std::shared_ptr<trace::Writer> writer;
  std::vector<std::uint64_t> handles;
  // What failed, where they fail: of a coalesced group, its last operation.
  FailedCollective operation;

  void done() const {
    for (const auto handle : handles) writer->leave(handle, false);
    note_done(handles.size());
  }
  void failed(const std::exception_ptr& error) const {  // null where no exception is known
    for (const auto handle : handles) writer->leave(handle, true);
    auto what = operation;
    what.failed_ns = monotonic_ns();
    note_failed(handles.size(), std::move(what), error);
  }
};

// How a Work tells that it is done.
enum class Completion {
  future,  // getFuture() completes with the work: Gloo's collectives
  // getFutureResult() does; NCCL's getFuture() completes when the work is handed to the device.
  future_result,
  wait,  // only to who waits: Gloo's send and recv have no future, and a few of its collectives
};

class ObservedWork final : public c10d::Work {
 public:
  ObservedWork(c10::intrusive_ptr<c10d::Work> inner, Entered entered)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), entered_(std::move(entered)) {}
  ~ObservedWork() override {
    if (first()) entered_.done();
  }

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    if (completed && first()) {
      if (inner_->isSuccess())
        entered_.done();
      else
        entered_.failed(inner_->exception());
    }
    return completed;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool done = inner_->wait(timeout);
      if (first()) {
        if (done)
          entered_.done();
        else
          entered_.failed(nullptr);
      }
      return done;
    } catch (...) {
      if (first()) entered_.failed(std::current_exception());
      throw;
    }
  }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
  void abort() override { inner_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
  float getDuration() const override { return inner_->getDuration(); }
  std::uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
#if LOCKSTEP_TORCH_2_14
  std::chrono::milliseconds getTimeout() const override {
    return inner_->getTimeout();
  }
#endif
#if LOCKSTEP_TORCH_2_15
  std::uint64_t getCompletionKey() const override {
    return inner_->getCompletionKey();
  }
#endif

 private:
  bool first() {
    return !left_.exchange(true);
  }

  const c10::intrusive_ptr<c10d::Work> inner_;
  const Entered entered_;
  std::atomic<bool> left_{false};
};

// Null where the work has none. Some of Gloo's works have (reduce_scatter_tensor_coalesced's), and
// only a call tells which: Work's own getFuture() throws before it does anything.
c10::intrusive_ptr<c10::ivalue::Future> future_of(c10d::Work& work, Completion completion) {
  try {
    return completion == Completion::future_result ? work.getFutureResult() : work.getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

void leave(const Entered& entered, c10::ivalue::Future& done) {
  if (done.hasError()) return entered.failed(done.exception_ptr());
  // A future of getFutureResult() holds a WorkResult, the others hold tensors.
  const auto& value = done.constValue();
  if (value.isInt() && value.toInt() != static_cast<std::int64_t>(c10d::WorkResult::SUCCESS))
    return entered.failed(nullptr);
  entered.done();
}

// Completes the records when `work` is done. Returns the work to hand on: the same, or for
// Completion::wait, and where the work has no such future, one around it, which behaves like it and
// records when wait() returns, or isCompleted() first says so, or nobody holds the work any more. A
// null work, which NCCL returns for an operation that is already on the caller's stream, is done.
c10::intrusive_ptr<c10d::Work> leave_when_done(c10::intrusive_ptr<c10d::Work> work, Entered entered,
                                               Completion completion) {
  if (!work) {
    entered.done();
    return work;
  }
  const auto future = completion == Completion::wait ? nullptr : future_of(*work, completion);
  if (!future) return c10::make_intrusive<ObservedWork>(std::move(work), std::move(entered));
  // The callback looks at no device memory, so it needs no stream of its own (uses_future = false).
  future->addCallback(
      [entered = std::move(entered)](c10::ivalue::Future& done) { leave(entered, done); },
      /*uses_future=*/false);
  return work;
}

// ---- the backend ----

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
                  std::shared_ptr<Recorder> recorder)
      : DecoratedBackend(std::move(backend)),
        writer_(std::move(writer)),
        recorder_(std::move(recorder)),
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
    return run(enter(describe(call), sequence_, call.tensors), completion_, start);
  }
  WorkPtr around_peer(trace::Collective operation, Start start) {
    pass_on();
    // Gloo's send and recv have no future, unlike its collectives.
    const auto completion = completion_ == Completion::future ? Completion::wait : completion_;
    return run(enter(std::move(operation), peer_sequence_), completion, start);
  }
  BackendPtr decorate_member(BackendPtr member, const StorePtr&) override {
    return observe(std::move(member), writer_, recorder_);
  }

  Entered enter(trace::Collective collective, std::atomic<std::int64_t>& sequence,
                c10::ArrayRef<at::Tensor> tensors = {}) {
    if (const auto recorder = recorder_ ? recorder_ : recorder_here())
      recorder->collective_begins(collective, tensors);
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
  const std::shared_ptr<Recorder> recorder_;
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
                   std::shared_ptr<Recorder> recorder) {
  return c10::make_intrusive<ObservedBackend>(std::move(backend), std::move(writer),
                                              std::move(recorder));
}

}  // namespace lockstep::record
