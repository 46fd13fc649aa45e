#include <ATen/core/VariableHooksInterface.h>
#include <lockstep/observe/backward_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <utility>

namespace lockstep {
namespace {

using at::TensorBase;
// A shared_ptr to the node; from torch 2.13 on an intrusive_ptr.
using GradFn = decltype(std::declval<const at::impl::VariableHooksInterface&>().grad_fn(
    std::declval<const TensorBase&>()));

class Hooks final : public at::impl::VariableHooksInterface {
 public:
  Hooks(at::impl::VariableHooksInterface& torchs, BackwardHook hook)
      : torchs_(torchs), hook_(hook) {}

  void _backward(const at::Tensor& root, at::TensorList inputs,
                 const std::optional<at::Tensor>& gradient, std::optional<bool> keep_graph,
                 bool create_graph) const override {
    hook_(root, gradient, inputs.empty() && !create_graph);
    torchs_._backward(root, inputs, gradient, keep_graph, create_graph);
  }

  // The rest as it is.
  TensorBase tensor_data(const TensorBase& tensor) const override {
    return torchs_.tensor_data(tensor);
  }
  TensorBase variable_data(const TensorBase& tensor) const override {
    return torchs_.variable_data(tensor);
  }
  GradFn grad_fn(const TensorBase& tensor) const override { return torchs_.grad_fn(tensor); }
  unsigned _register_hook(const TensorBase& tensor,
                          std::function<TensorBase(const TensorBase&)> hook) const override {
    return torchs_._register_hook(tensor, std::move(hook));
  }
  void remove_hook(const TensorBase& tensor, unsigned position) const override {
    torchs_.remove_hook(tensor, position);
  }
  bool is_view(const TensorBase& tensor) const override { return torchs_.is_view(tensor); }
  const TensorBase& base(const TensorBase& tensor) const override { return torchs_.base(tensor); }
  const std::string& name(const TensorBase& tensor) const override { return torchs_.name(tensor); }
  bool is_leaf(const TensorBase& tensor) const override { return torchs_.is_leaf(tensor); }
  std::int64_t output_nr(const TensorBase& tensor) const override {
    return torchs_.output_nr(tensor);
  }
  void set_data(const TensorBase& tensor, const TensorBase& data) const override {
    torchs_.set_data(tensor, data);
  }
  TensorBase data(const TensorBase& tensor) const override { return torchs_.data(tensor); }
  std::int64_t _version(const TensorBase& tensor) const override {
    return torchs_._version(tensor);
  }
  void retain_grad(const TensorBase& tensor) const override { torchs_.retain_grad(tensor); }
  bool retains_grad(const TensorBase& tensor) const override {
    return torchs_.retains_grad(tensor);
  }
  void requires_grad_(const TensorBase& tensor, bool wanted) const override {
    torchs_.requires_grad_(tensor, wanted);
  }
  void basic_autograd_not_implemented_fallback(const c10::OperatorHandle& op,
                                               c10::DispatchKeySet dispatch_keys,
                                               torch::jit::Stack* stack) const override {
    torchs_.basic_autograd_not_implemented_fallback(op, dispatch_keys, stack);
  }
  std::optional<c10::ScalarType> grad_dtype(const TensorBase& tensor) const override {
    return torchs_.grad_dtype(tensor);
  }
  void set_grad_dtype(const TensorBase& tensor,
                      const std::optional<c10::ScalarType>& dtype) const override {
    torchs_.set_grad_dtype(tensor, dtype);
  }

 private:
  at::impl::VariableHooksInterface& torchs_;
  BackwardHook hook_;
};

}  // namespace

void hook_backward(BackwardHook hook) {
  static std::once_flag once;
  std::call_once(once, [&] {
    // Never let go: torch may ask for it until the process ends.
    at::impl::SetVariableHooks(new Hooks(*at::impl::GetVariableHooks(), hook));
  });
}

bool is_accumulated(const at::Tensor& leaf) {
  const auto* only = torch::autograd::get_current_graph_task_exec_info();
  if (only == nullptr || only->empty()) return true;  // everything runs
  const auto found = only->find(torch::autograd::impl::try_get_grad_accumulator(leaf).get());
  return found != only->end() && found->second.needed_;
}

}  // namespace lockstep
