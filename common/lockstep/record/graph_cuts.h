// Reductions of values that autograd follows, by a collective that it does not follow.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/record/loss_graph.h>
#include <lockstep/record/probes.h>
#include <lockstep/trace/event.h>

#include <vector>

namespace lockstep::record {

class GraphCuts {
 public:
  void note(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors);
  // Those since the last one that lead to this loss are told.
  void backward(const at::Tensor& loss, Probes& probes);

 private:
  struct Cut {
    trace::GraphCut what;
    WeakNode node;  // that led to what the all-reduce overwrote
  };
  std::vector<Cut> cuts_;
};

}  // namespace lockstep::record
