// What the parts do with a model's gradients, in a few lines each. All of them are one vector here.
#pragma once

#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module);

double norm_of(const std::vector<at::Tensor>& gradients);
bool are_finite(const std::vector<at::Tensor>& gradients);

// What clip_grad_norm_ does once it knows the norm: g *= min(1, max_norm / (norm + 1e-6)).
void clip(const std::vector<at::Tensor>& gradients, double max_norm, double norm);

// Collective: the mean over the ranks, in place.
void average(c10d::ProcessGroup& group, const std::vector<at::Tensor>& gradients);

// The ids of a step's global batch, and this rank's: every W-th of them.
struct GlobalBatch {
  std::vector<std::int64_t> everyone, mine;
};
GlobalBatch global_batch(std::int64_t step, std::int64_t per_rank, int rank, int world_size);
