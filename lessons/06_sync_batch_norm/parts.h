// The parts of lesson 06, one file each, and the model of all but the first.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part by_hand_part();
lockstep::Part buffers_part();
lockstep::Part modes_part();
lockstep::Part two_views_part();
lockstep::Part conversion_part();

// Linear(784, 64) - BatchNorm - Tanh - Linear(64, 10).
torch::nn::Sequential batch_norm_mlp();
// One that begins with these weights, as a reference does.
torch::nn::Sequential batch_norm_mlp(const std::vector<at::Tensor>& weights);

// The ids of this rank's samples of a step: `batch` of them, rank after rank.
std::vector<std::int64_t> own_batch(const lockstep::RankContext& context, std::int64_t step,
                                    std::int64_t batch);
