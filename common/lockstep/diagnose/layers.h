// Layers that keep running statistics, as BatchNorm does.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstddef>
#include <vector>

namespace lockstep::diagnose {

// The holder of those of a model that no engine wrapped, as lockstep_torch/outside.py calls it.
constexpr const char* kModelStatistics = "statistics of the model";

// Its places among the recorded buffers and parameters.
struct Layer {
  std::size_t buffer = 0, parameter = 0;  // running mean, weight
  std::size_t batches() const {
    return buffer + 2;
  }  // mean, variance, and how many batches they are of
};

// Those that were in training mode at the start.
std::vector<Layer> layers_in_training(const trace::ParticipantTrace& rank);

}  // namespace lockstep::diagnose
