// What the parts do with a model's gradients, in a few lines each. All of them are one vector here.
#pragma once

#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <vector>

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

double norm_of(const std::vector<at::Tensor>& gradients);
bool are_finite(const std::vector<at::Tensor>& gradients);

// What clip_grad_norm_ does once it knows the norm: g *= min(1, max_norm / (norm + 1e-6)).
void clip(const std::vector<at::Tensor>& gradients, double max_norm, double norm);

// Collective: the mean over the ranks, in place.
void average(c10d::ProcessGroup& group, const std::vector<at::Tensor>& gradients);

// A scaler written by hand tells what it has decided; train/grad_scaler.h does so by itself.
void tell_scaled_step(double scale, bool found_nonfinite, bool updates);
