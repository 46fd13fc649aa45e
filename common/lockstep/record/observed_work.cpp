#include <ATen/core/ivalue_inl.h>
#include <lockstep/base/clock.h>
#include <lockstep/record/observed_work.h>
#include <lockstep/record/torch_version.h>

#include <atomic>
#include <string>
#include <utility>

namespace lockstep::record {
namespace {

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

}  // namespace

void Entered::done() const {
  for (const auto handle : handles) writer->leave(handle, false);
  note_done(handles.size());
}

void Entered::failed(const std::exception_ptr& error) const {
  for (const auto handle : handles) writer->leave(handle, true);
  auto what = operation;
  what.failed_ns = monotonic_ns();
  note_failed(handles.size(), std::move(what), error);
}

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

}  // namespace lockstep::record
