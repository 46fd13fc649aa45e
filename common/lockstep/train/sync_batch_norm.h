// SyncBatchNorm for C++: BatchNorm whose batch, in training mode, is that of all ranks together.
//
//   bn = register_module("bn", SyncBatchNorm(64, group));   // synchronises from the start
//   bn = register_module("bn", SyncBatchNorm(64, nullptr)); // plain, until it is converted:
//   convert_sync_batchnorm(*model, group);                  // switches every such layer on
//   auto ddp = DistributedDataParallel(model, group);       // then wrap
//
// Formulas: torch/nn/modules/_functions.py of PyTorch 2.11. What goes over the wire is what Python
// sends: in forward each rank's [mean, 1 / sqrt(var + eps), count] (2C + 1 numbers, all-gathered),
// in backward [sum dy, sum dy (x - mean)] (2C numbers, all-reduced). Python's refuses the CPU; this
// one runs there too.
#pragma once

#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace lockstep {

// The tensors of a BatchNorm layer; undefined where the options leave them out.
struct BatchNormTensors {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

// Input [N, C, ...] of two dimensions or more (Python's BatchNorm1d, 2d and 3d), the same shape
// out. N may differ by rank and may be 0 on some. float32 or float64, or half precision with the
// statistics in float32. Parameters and buffers have BatchNorm's names, dtypes and initial values.
//
// Collective in training mode: every rank of the group must call forward in training mode, and, if
// the input requires a gradient, run backward through it, as often and in the same order, a rank
// without samples too. A rank that does not leaves the others to the group's timeout
// (CollectiveError). Not collective in eval mode, without a group, or with a group of one rank:
// then it is torch::nn::BatchNorm. Forward and backward wait for their collectives.
//
// The gradients of weight and bias stay this rank's own: DDP reduces them with the others. DDP
// takes the mean over ranks, which is the global batch's gradient where each rank's loss is
// W / N_global times the sum over its samples (for equal batches, the usual mean).
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // A null group: plain batch norm until synchronize() or convert_sync_batchnorm gives it one.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroupPtr group);
  // Over tensors that exist, such as another layer's: shared, not copied.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, ProcessGroupPtr group,
                    const BatchNormTensors& tensors);

  // Throws UsageError before any collective for an input of the wrong shape, and on all ranks when
  // the global batch has one value per channel. The backward cannot itself be differentiated; it
  // throws Error where create_graph asks for that.
  at::Tensor forward(const at::Tensor& input);

  void synchronize(ProcessGroupPtr group) { group_ = std::move(group); }
  const ProcessGroupPtr& process_group() const { return group_; }

  void reset() override;  // makes the tensors anew
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  void adopt(const BatchNormTensors& tensors);
  void check(const at::Tensor& input) const;
  double count_batch();

  ProcessGroupPtr group_;
};
TORCH_MODULE(SyncBatchNorm);

// Makes every BatchNorm inside `module` synchronise over `group`, in place, and gives back their
// names. Not collective. Weights, running statistics and mode are kept, and the tensors are the
// same ones, so an optimizer or a DDP that holds them stays right.
//
//   SyncBatchNorm                          switched on, wherever it stands
//   torch::nn::BatchNorm1d, 2d, 3d         replaced, if it is a layer of a torch::nn::Sequential that
//                                          nobody else holds
//
// In Python a replaced layer is found through its attribute. A C++ class calls its layers through
// members of fixed types, which would go on calling the old layer without a word, so every other
// torch::nn::BatchNorm is refused: UsageError names them all, and nothing has been changed.
std::vector<std::string> convert_sync_batchnorm(torch::nn::Module& module,
                                                const ProcessGroupPtr& group);

}  // namespace lockstep
