// DataParallel: one process, several devices. torch.nn.DataParallel's four steps, each visible:
// scatter the batch, replicate the module, apply the replicas side by side, gather or reduce to the
// first device.
//
// Devices are CUDA devices, or "logical" CPU devices: threads of this process, each with a replica
// and memory that it alone is meant to touch, so that the pattern and its costs can be seen without
// a GPU. A device is known by its position in `devices`: {cpu, cpu, cpu} are three.
//
// All tell observers (observe/observer.h) what they do, and what a step moves between devices: "input",
// "parameters", "output", "gradients". LibTorch's own data_parallel does not tell.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace lockstep {

// Cuts a batch along dim 0 as at::chunk does: at most `devices` parts, sizes differing only in the
// last. 5 over 4 devices gives 3 parts (2, 2, 1): use as many replicas as there are parts. A batch in
// the host's memory goes to each device from there, any other one from the first device. Throws
// UsageError for no devices or a batch without dimensions.
std::vector<at::Tensor> scatter(const at::Tensor& batch, const std::vector<c10::Device>& devices);

// One copy of `module` per device; the first is `module` itself. Copies hold their own parameters
// and buffers, equal to the module's now, frozen where the module's are. The module must derive
// from torch::nn::Cloneable, throws UsageError else. The global random generator is left as it was.
std::vector<std::shared_ptr<torch::nn::Module>> replicate(
    const std::shared_ptr<torch::nn::Module>& module, const std::vector<c10::Device>& devices);

// Runs work(i), a forward of replica i, for i in [0, count) in a thread each, with grad mode and
// torch's other thread-local state as here. Waits for all, then rethrows the exception of the lowest
// i that threw.
void parallel_apply(std::size_t count, const std::function<void(std::size_t)>& work);

// Concatenates along dim 0 on the first device, `device`. Differentiable; what a backward then
// moves is not told.
at::Tensor gather(const std::vector<at::Tensor>& outputs, c10::Device device);

// Adds every replica's gradients, each times its weight, into the first replica's .grad. With mean
// losses per part, weights of samples_i / samples give the gradient of the mean over the whole
// batch. A gradient that a replica lacks counts as zero; one that all lack stays undefined. The
// other replicas' gradients stay as they are. Throws UsageError unless there is a weight per
// replica and all have the same parameters.
void reduce_gradients(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
                      const std::vector<double>& weights);

// The same sum on every replica: a ring of reduce-scatter and all-gather, in which each device
// sends and receives 2 (n-1)/n of the gradients' bytes, and none is special. All replicas end with
// the same bits; they equal reduce_gradients' up to the order of the sums. Gradients must have one
// dtype (UsageError). Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for
// clusters of workstations, 2009.
void ring_all_reduce_gradients(const std::vector<std::shared_ptr<torch::nn::Module>>& replicas,
                               const std::vector<double>& weights);

}  // namespace lockstep
