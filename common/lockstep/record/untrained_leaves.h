// Parameters that losses lead to, and that nobody knows of.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <lockstep/trace/event.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::record {

// Of at most 64 at a time. It keeps none of them alive.
class UntrainedLeaves {
 public:
  void look(std::int64_t step, const std::vector<at::Tensor>& leaves);
  // Those that led to losses of at least four steps, are not known now either, and are what they were in the second.
  trace::Configuration unchanged(c10::function_ref<bool(const at::Tensor&)> is_known) const;

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Leaf {
    Weak tensor;
    std::uint64_t hash = 0;  // in the second step: most that are no parameters do not come so far
    std::int64_t first = -1, last = -1;
    int steps = 0;
  };
  std::map<const void*, Leaf> leaves_;
};

}  // namespace lockstep::record
