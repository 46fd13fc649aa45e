#include <lockstep/train/comm_hooks.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace lockstep {
namespace {

class Bf16Compress : public c10d::CppCommHookInterface<ProcessGroupPtr> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const auto buffer = bucket.getBuffer();
    // Divided first: a sum of many ranks would leave bfloat16's precision sooner than it has to.
    std::vector<at::Tensor> compressed{buffer.to(at::kBFloat16).div_(state_->getSize())};
    return state_->allreduce(compressed)
        ->getFuture()
        ->then(
            [buffer](c10::ivalue::Future& reduced) {
              const auto value = reduced.value();
              buffer.copy_(value.isTensorList() ? value.toTensorVector().at(0) : value.toTensor());
              return c10::IValue(buffer);
            },
            c10::TensorType::get());
  }
};

}  // namespace

std::unique_ptr<c10d::CommHookInterface> bf16_compress_hook(const ProcessGroupPtr& group) {
  return std::make_unique<Bf16Compress>(group);
}

}  // namespace lockstep
