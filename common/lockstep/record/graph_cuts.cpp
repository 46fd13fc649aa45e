#include <lockstep/record/graph_cuts.h>
#include <lockstep/record/loss_graph.h>

#include <utility>

namespace lockstep::record {

// Of one number it may be a loss that is shown, and whose gradient does not go by its value.
void GraphCuts::note(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors) {
  constexpr std::size_t kMost = 64;
  if (!torch::GradMode::is_enabled() || call.op.find("allreduce") == std::string::npos) return;
  for (const auto& tensor : tensors)
    if (cuts_.size() < kMost && tensor.defined() && tensor.numel() > 1 && tensor.grad_fn())
      cuts_.push_back({{call.op, tensor.numel()}, tensor.grad_fn()});
}

void GraphCuts::backward(const at::Tensor& loss, Probes& probes) {
  for (const auto& cut : std::exchange(cuts_, {}))
    if (const auto node = cut.node.lock(); node && probes.looks_at_values() &&
                                           node != loss.grad_fn() &&
                                           leads_to(loss, node.get(), kMostGraphNodes))
      probes.tell(cut.what);
}

}  // namespace lockstep::record
