// Parameters that losses lead to, and that nobody knows of.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <lockstep/record/held_parameters.h>
#include <lockstep/trace/event.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::record {

// Of at most 64 at a time. It keeps none of them alive.
class UntrainedLeaves {
 public:
  void look(std::int64_t step, const std::vector<at::Tensor>& leaves);
  void let_go(const std::vector<at::Tensor>& tensors);
  // Those that are not known now, after `step`, either, and are what they were at first. They led to losses of at least
  // four steps; or of the last one that was looked at, eight updates ago or more: what is thawed late is seen seldom.
  trace::Untrained unchanged(std::int64_t step,
                             c10::function_ref<bool(const at::Tensor&)> is_known) const;

 private:
  struct Leaf {
    WeakTensor tensor;
    std::uint64_t hash = 0;
    std::int64_t first = -1, last = -1;
    int steps = 0;
  };
  std::map<const void*, Leaf> leaves_;
  std::int64_t last_look_ = -1;
};

}  // namespace lockstep::record
