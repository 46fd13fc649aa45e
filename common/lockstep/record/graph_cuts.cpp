#include <lockstep/record/graph_cuts.h>

#include <utility>

namespace lockstep::record {

// Of one number it may be a loss that is shown, and whose gradient does not go by its value.
void GraphCuts::note(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors) {
  constexpr std::size_t kMost = 64;
  if (!torch::GradMode::is_enabled() || call.op.find("allreduce") == std::string::npos) return;
  for (const auto& tensor : tensors)
    if (cuts_.size() < kMost && tensor.defined() && tensor.numel() > 1 && tensor.grad_fn())
      cuts_.push_back({{call.op, tensor.numel()}, weak_node(tensor.grad_fn())});
}

void GraphCuts::backward(const at::Tensor& loss, Probes& probes) {
  const auto cuts = std::exchange(cuts_, {});
  if (!probes.looks_at_values()) return;
  Operations operations;
  for (const auto& cut : cuts)
    if (const auto node = cut.node.lock(); node && node != loss.grad_fn())
      operations.insert(node.get());
  if (operations.empty()) return;
  const auto met = led_to(loss, operations, kMostGraphNodes);
  for (const auto& cut : cuts)
    if (const auto node = cut.node.lock(); node && met.contains(node.get())) probes.tell(cut.what);
}

}  // namespace lockstep::record
