// Parameters that losses give gradients to, and that nobody knows of.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <lockstep/trace/event.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::record {

// Holds on to the tensors, at most 64.
class UntrainedLeaves {
 public:
  void look(std::int64_t step, const std::vector<at::Tensor>& leaves);
  // Those that led to losses of at least four steps, are not known now either, and are what they were at first.
  trace::Configuration unchanged(c10::function_ref<bool(const at::Tensor&)> is_known) const;

 private:
  struct Leaf {
    at::Tensor tensor;
    std::uint64_t hash = 0;
    std::int64_t first = -1, last = -1;
    int steps = 0;
  };
  std::map<const void*, Leaf> leaves_;
};

}  // namespace lockstep::record
