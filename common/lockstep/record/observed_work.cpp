#include <ATen/core/ivalue_inl.h>
#include <lockstep/record/observed_work.h>

#include <atomic>
#include <utility>

namespace lockstep::record {
namespace {

class ObservedWork final : public c10d::Work {
 public:
  ObservedWork(c10::intrusive_ptr<c10d::Work> inner, Entered entered)
      : Work(-1, inner->retrieveOpType()), inner_(std::move(inner)), entered_(std::move(entered)) {}
  ~ObservedWork() override { leave(false); }

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    if (completed) leave(!inner_->isSuccess());
    return completed;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      const bool done = inner_->wait(timeout);
      leave(!done);
      return done;
    } catch (...) {
      leave(true);
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

 private:
  void leave(bool failed) {
    if (!left_.exchange(true)) entered_.leave(failed);
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

bool has_failed(c10::ivalue::Future& done) {
  if (done.hasError()) return true;
  // A future of getFutureResult() holds a WorkResult, the others hold tensors.
  const auto& value = done.constValue();
  return value.isInt() && value.toInt() != static_cast<std::int64_t>(c10d::WorkResult::SUCCESS);
}

}  // namespace

void Entered::leave(bool failed) const {
  for (const auto handle : handles) writer->leave(handle, failed);
}

c10::intrusive_ptr<c10d::Work> leave_when_done(c10::intrusive_ptr<c10d::Work> work, Entered entered,
                                               Completion completion) {
  if (!work) {
    entered.leave(false);
    return work;
  }
  const auto future = completion == Completion::wait ? nullptr : future_of(*work, completion);
  if (!future) return c10::make_intrusive<ObservedWork>(std::move(work), std::move(entered));
  // The callback looks at no device memory, so it needs no stream of its own (uses_future = false).
  future->addCallback([entered = std::move(entered)](
                          c10::ivalue::Future& done) { entered.leave(has_failed(done)); },
                      /*uses_future=*/false);
  return work;
}

}  // namespace lockstep::record
