#include <lockstep/record/probes.h>
#include <lockstep/record/untrained_leaves.h>

#include <sstream>
#include <string>

namespace lockstep::record {

void UntrainedLeaves::look(std::int64_t step, const std::vector<at::Tensor>& leaves) {
  constexpr std::size_t kMost = 64;
  std::erase_if(leaves_, [](const auto& each) { return each.second.tensor.expired(); });
  for (const auto& tensor : leaves) {
    const void* address = tensor.unsafeGetTensorImpl();
    auto found = leaves_.find(address);
    if (found == leaves_.end()) {
      if (leaves_.size() >= kMost) continue;
      found =
          leaves_.emplace(address, Leaf{.tensor = Weak(tensor.getIntrusivePtr()), .first = step})
              .first;
    }
    auto& leaf = found->second;
    if (leaf.last == step) continue;
    leaf.last = step;
    if (++leaf.steps == 2) leaf.hash = summarize(tensor).hash;
  }
}

trace::Configuration UntrainedLeaves::unchanged(
    c10::function_ref<bool(const at::Tensor&)> is_known) const {
  constexpr int kSteps = 4;
  trace::Configuration untrained{.of = "untrained", .keys = {}, .values = {}};
  for (const auto& [address, leaf] : leaves_) {
    const at::Tensor tensor(leaf.tensor.lock());
    if (!tensor.defined() || leaf.steps < kSteps || is_known(tensor) ||
        summarize(tensor).hash != leaf.hash)
      continue;
    std::ostringstream shape;
    shape << tensor.sizes();
    untrained.keys.push_back(shape.str());
    untrained.values.push_back(std::to_string(leaf.first));
  }
  return untrained;
}

}  // namespace lockstep::record
