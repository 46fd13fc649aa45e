// Losses that tell what each sample lost, so that a mean over too few or too many of them can be seen.
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/observe/place.h>

namespace lockstep {

// Of each sample, unscaled: [n] for `outputs` [n, classes] and `targets` [n] of class ids. Call mean() on it, or
// whatever the job means, and backward() on that. A finding about the backward names the line of this call, since
// backward() does not say where it is called.
at::Tensor cross_entropy(const at::Tensor& outputs, const at::Tensor& targets,
                         Place place = Place::here());

// The same of a loss of your own: gives `per_sample` back.
at::Tensor tell_loss(at::Tensor per_sample, const at::Tensor& outputs = {},
                     const at::Tensor& targets = {}, Place place = Place::here());

}  // namespace lockstep
