#include <lockstep/dist/collective_call.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/join.h>
#include <torch/torch.h>

namespace lockstep {
c10::intrusive_ptr<c10d::Work> Joinable::notify_join_context() {
  if (!options_ || !is_first_) return {};
  auto& group = *join_process_group();
  c10::intrusive_ptr<c10d::Work> work;
  collective_call(group, "join's count of the ranks that have a batch", [&] {
    std::vector<at::Tensor> not_done{at::ones({1}, at::device(device_of(group)).dtype(at::kFloat))};
    work = group.allreduce(not_done);
  });
  if (options_->throw_on_early_termination && sum_over_ranks(group, 0) != 0)
    throw UnevenInputs("join: at least one rank has no more batches, and rank " +
                       std::to_string(group.getRank()) + " has");
  return work;
}

// The joinables know the options while it lives.
class JoinScope {
 public:
  JoinScope(const std::vector<std::reference_wrapper<Joinable>>& joinables,
            const JoinOptions& options)
      : joinables_(joinables) {
    for (Joinable& joinable : joinables_) joinable.options_ = options;
    joinables_.front().get().is_first_ = true;
  }
  ~JoinScope() {
    for (Joinable& joinable : joinables_) {
      joinable.options_.reset();
      joinable.is_first_ = false;
      joinable.leave_join();
    }
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  const std::vector<std::reference_wrapper<Joinable>>& joinables_;
};

std::int64_t join(const std::vector<std::reference_wrapper<Joinable>>& joinables,
                  const std::function<void()>& training, const JoinOptions& options) {
  if (joinables.empty()) throw UsageError("join: nothing to join; pass model.engine()");
  const auto& shared = joinables.front().get().join_process_group();
  for (const Joinable& joinable : joinables) {
    if (joinable.join_process_group() != shared)
      throw UsageError("join: the joinables are of different process groups");
    joinable.check_join();
  }
  if (!options.enable) {
    training();
    return 0;
  }
  const JoinScope scope(joinables, options);
  training();
  auto& group = *shared;
  std::int64_t shadowed = 0;
  while (sum_over_ranks(group, 0) != 0) {
    if (options.throw_on_early_termination) {
      sum_over_ranks(group, 1);
      throw UnevenInputs("join: rank " + std::to_string(group.getRank()) +
                         " has no more batches, and other ranks have");
    }
    for (Joinable& joinable : joinables) joinable.main_hook();
    ++shadowed;
  }
  for (Joinable& joinable : joinables) joinable.post_hook(shadowed == 0);
  return shadowed;
}

}  // namespace lockstep
