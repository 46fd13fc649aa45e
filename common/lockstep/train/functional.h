// Collectives that a loss can be computed through: torch.distributed.nn.functional's, bit for bit over
// Gloo. The collectives of dist/process_group.h leave no trace in the graph: what they return has no
// gradient.
//
// A rank's own loss gives each value it got from another rank a gradient, and that belongs to the rank
// the value came from. So the backward communicates too: it is collective, and a rank whose loss does
// not use the result makes the others wait. Summed over the ranks, the gradients are those of the sum
// of all ranks' losses; a wrapper that averages them over W ranks makes it their mean's.
#pragma once

#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <vector>

namespace lockstep::functional {

// Collective, blocks; throws CollectiveError. One tensor per rank, in rank order, each of `tensor`'s
// shape and dtype, which all ranks must share. Backward: the gradients that all ranks have for this
// rank's tensor, added up in rank order (one all-to-all of W times the tensor).
std::vector<at::Tensor> all_gather(const ProcessGroupPtr& group, const at::Tensor& tensor);

// Collective, blocks; throws CollectiveError. The sum over the ranks, in a new tensor. Backward: the
// sum of all ranks' gradients.
at::Tensor all_reduce(const ProcessGroupPtr& group, const at::Tensor& tensor);

}  // namespace lockstep::functional
