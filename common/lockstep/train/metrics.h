// Figures that are true of all ranks: sums and counts, never means of means.
#pragma once

#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

namespace lockstep {

// A mean that is kept as sum and count, so that means of unequal parts can be joined. Observers are told of what
// value() and reduce_metric() give.
struct Mean {
  double sum = 0;
  double count = 0;
  void add(const at::Tensor& values);  // every element
  double value() const;                // NaN of nothing
};

// Collective, blocks: one all-reduce of two float64. The mean over all ranks' values, the same on
// every rank; a rank that has none (count 0) takes part too. Throws CollectiveError.
Mean reduce_metric(c10d::ProcessGroup& group, const Mean& local, Place place = Place::here());

}  // namespace lockstep
