// The oracle's reference: one process trains on the whole global batch. No collective, no trace.
#pragma once

#include <torch/torch.h>

#include <vector>

namespace lockstep {

// Every parameter (or gradient) of a module as one flat float64 vector.
at::Tensor flat_parameters(const torch::nn::Module& module);
at::Tensor flat_gradients(const torch::nn::Module& module);
at::Tensor flat_parameters(const std::vector<at::Tensor>& parameters);
at::Tensor flat_gradients(const std::vector<at::Tensor>& parameters);

// Largest absolute difference, over the largest absolute value of `reference`; 0 for equal vectors.
double relative_distance(const at::Tensor& value, const at::Tensor& reference);

// s in value = s * reference, by least squares.
double scale_of(const at::Tensor& value, const at::Tensor& reference);

// Copies parameters and buffers, by position.
void copy_parameters(const torch::nn::Module& from, torch::nn::Module& to);
// Copies these alone.
void copy_parameters(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);

}  // namespace lockstep
