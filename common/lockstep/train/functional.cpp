#include <lockstep/dist/collective_call.h>
#include <lockstep/train/functional.h>

namespace lockstep::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

void keep_group(AutogradContext* context, const ProcessGroupPtr& group) {
  context->saved_data["group"] = c10::IValue::make_capsule(group);
}

ProcessGroupPtr kept_group(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(
      context->saved_data["group"].toCapsule());
}

// The backend's own thread holds an operation's tensors for a moment after wait(). None of them may be of
// the graph, which leads to the group: that thread would be the last to let go of it, and wait for
// itself for ever. So operations get, and programs are given, detached ones.

// Part s of the input goes to rank s; part s of the output came from rank s. Its backward sends the
// parts back.
class AllToAll : public Function<AllToAll> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parts,
                            const ProcessGroupPtr& group) {
    keep_group(context, group);
    auto sent = parts.detach().contiguous();
    auto received = at::empty_like(sent);
    collective_call(*group, "all_to_all", [&] {
      std::vector<std::int64_t> equal;  // empty: parts of one size
      finish(*group, group->alltoall_base(received, sent, equal, equal));
    });
    return received.detach();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {AllToAll::apply(gradients[0], kept_group(context)), at::Tensor()};
  }
};

class AllGather : public Function<AllGather> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& tensor,
                               const ProcessGroupPtr& group) {
    keep_group(context, group);
    auto gathered = lockstep::all_gather(*group, tensor.detach());
    for (auto& part : gathered) part = part.detach();
    return gathered;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {AllToAll::apply(at::stack(gradients), kept_group(context)).sum(0), at::Tensor()};
  }
};

class AllReduce : public Function<AllReduce> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const ProcessGroupPtr& group) {
    keep_group(context, group);
    auto sum = tensor.detach().clone(at::MemoryFormat::Contiguous);
    lockstep::all_reduce(*group, sum);
    return sum.detach();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {AllReduce::apply(gradients[0], kept_group(context)), at::Tensor()};
  }
};

}  // namespace

std::vector<at::Tensor> all_gather(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  return AllGather::apply(tensor, group);
}

at::Tensor all_reduce(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  return AllReduce::apply(tensor, group);
}

}  // namespace lockstep::functional
