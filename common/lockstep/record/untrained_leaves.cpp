#include <lockstep/record/probes.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/untrained_leaves.h>

namespace lockstep::record {

void UntrainedLeaves::look(std::int64_t step, const std::vector<at::Tensor>& leaves) {
  constexpr std::size_t kMost = 64;
  last_look_ = step;
  std::erase_if(leaves_, [](const auto& each) { return each.second.tensor.expired(); });
  for (const auto& tensor : leaves) {
    if (!is_readable(tensor)) continue;
    const void* address = tensor.unsafeGetTensorImpl();
    auto found = leaves_.find(address);
    if (found == leaves_.end()) {
      if (leaves_.size() >= kMost) continue;
      Leaf leaf{.tensor = weak_of(tensor), .hash = summarize(tensor).hash, .first = step};
      found = leaves_.emplace(address, std::move(leaf)).first;
    }
    auto& leaf = found->second;
    leaf.steps += leaf.last != step;
    leaf.last = step;
  }
}

void UntrainedLeaves::let_go(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) leaves_.erase(tensor.unsafeGetTensorImpl());
}

trace::Untrained UntrainedLeaves::unchanged(
    std::int64_t step, c10::function_ref<bool(const at::Tensor&)> is_known) const {
  constexpr int kSteps = 4, kUpdates = 8;
  trace::Untrained untrained;
  for (const auto& [address, leaf] : leaves_) {
    const at::Tensor tensor(leaf.tensor.lock());
    const bool is_used =
        leaf.steps >= kSteps || (leaf.last == last_look_ && step - leaf.first >= kUpdates);
    if (!is_readable(tensor) || !is_used || is_known(tensor) || summarize(tensor).hash != leaf.hash)
      continue;
    untrained.leaves.push_back({tensor.sizes().vec(), leaf.first});
  }
  return untrained;
}

}  // namespace lockstep::record
