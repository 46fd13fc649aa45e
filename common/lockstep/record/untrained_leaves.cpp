#include <lockstep/record/probes.h>
#include <lockstep/record/untrained_leaves.h>

#include <sstream>
#include <string>

namespace lockstep::record {

void UntrainedLeaves::look(std::int64_t step, const std::vector<at::Tensor>& leaves) {
  constexpr std::size_t kMost = 64;
  for (const auto& tensor : leaves) {
    const void* address = tensor.unsafeGetTensorImpl();
    if (leaves_.size() >= kMost && leaves_.count(address) == 0) continue;
    auto& leaf = leaves_[address];
    if (leaf.steps == 0) leaf = {tensor, summarize(tensor).hash, step, -1, 0};
    if (leaf.last == step) continue;
    leaf.last = step;
    ++leaf.steps;
  }
}

trace::Configuration UntrainedLeaves::unchanged(
    c10::function_ref<bool(const at::Tensor&)> is_known) const {
  constexpr int kSteps = 4;
  trace::Configuration untrained{.of = "untrained", .keys = {}, .values = {}};
  for (const auto& [address, leaf] : leaves_) {
    if (leaf.steps < kSteps || is_known(leaf.tensor) || summarize(leaf.tensor).hash != leaf.hash)
      continue;
    std::ostringstream shape;
    shape << leaf.tensor.sizes();
    untrained.keys.push_back(shape.str());
    untrained.values.push_back(std::to_string(leaf.first));
  }
  return untrained;
}

}  // namespace lockstep::record
