// Tensors as numbers, a piece at a time: nothing is copied whole, wherever a tensor is and however it lies in memory.
// summarize() itself is in record/probes.h.
#pragma once

#include <lockstep/trace/event.h>
#include <torch/torch.h>

#include <cstdint>

namespace lockstep::record {

std::uint64_t hash_of(const at::Tensor& tensor);  // summarize()'s

// summarize(a + b), of two dense tensors of one shape and dtype, on one device.
trace::Summary summarize_sum(const at::Tensor& a, const at::Tensor& b);

// What is known of a + b when a and b are gone: the projections. The norm is theirs, and the hash one of both hashes.
trace::Summary sum_of(const trace::Summary& a, const trace::Summary& b);

}  // namespace lockstep::record
