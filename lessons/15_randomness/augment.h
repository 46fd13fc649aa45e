// What both parts do to their images, and how the oracle counts it.
#pragma once

#include <lockstep/lesson/lesson.h>

#include <random>

// Three random numbers in [0, 1), float64: an image's shift to the right, shift down, mirroring.
at::Tensor draw(std::mt19937_64& generator);

// Images [N, 784], shifted (around the edges) by up to 2 pixels each way and mirrored half of the
// time, as row i of `numbers` [N, 3] says.
at::Tensor augment(const at::Tensor& images, const at::Tensor& numbers);

// Writes down what was drawn for a batch, for the oracle.
void write_down(lockstep::RankContext& context, const at::Tensor& numbers);

// Different draws (a batch's first number), over the batches of all ranks: 1 where no batch got the
// numbers of another.
lockstep::Measured different_draws(const lockstep::Outcomes& outcomes);
