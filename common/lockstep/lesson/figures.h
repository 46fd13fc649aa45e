// Small things that lessons count with.
#pragma once

#include <lockstep/lesson/lesson.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/models.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// 0 .. size-1: the ids of a data set whose samples are known by their position.
std::vector<std::int64_t> all_ids(std::int64_t size);

// A figure of this rank's outcome; a further call adds a further value.
void add_figure(RankContext& context, const std::string& name, double value);

// The gradient of the mean cross entropy over `batch`, computed on a copy of the model by one
// process. Flat float64, as flat_gradients.
at::Tensor gradient_of_batch(const Mlp& model, const TensorData& batch);

// Over all ranks and values of a figure. NaN where no rank wrote it, or any value is NaN.
double largest(const Outcomes& outcomes, const std::string& figure);
double smallest(const Outcomes& outcomes, const std::string& figure);
// Every rank's first value: the largest minus the smallest.
double spread(const Outcomes& outcomes, const std::string& figure);

// For oracles of sample ids: how often each id was drawn in one pass, over all ranks.
std::vector<std::int64_t> times_drawn(const Outcomes& outcomes, const std::string& phase,
                                      std::size_t pass, std::int64_t dataset_size);

}  // namespace lockstep
