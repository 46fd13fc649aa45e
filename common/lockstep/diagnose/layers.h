// Layers that keep running statistics, as BatchNorm does.
#pragma once

#include <lockstep/diagnose/readings.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace lockstep::diagnose {

// The holder of those of a model that no engine wrapped, as lockstep_torch/outside.py calls it.
constexpr const char* kModelStatistics = "statistics of the model";

// Its places among the recorded buffers and parameters.
struct Layer {
  std::size_t buffer = 0, parameter = 0;  // running mean, weight
  bool trains = false;                    // at the start
  bool has(std::size_t of_buffers) const { return of_buffers >= buffer && of_buffers <= batches(); }
  std::size_t batches() const {
    return buffer + 2;
  }  // mean, variance, and how many batches they are of
};

std::vector<Layer> layers_of(const trace::ParticipantTrace& rank);
// Those that were in training mode at the start.
std::vector<Layer> layers_in_training(const trace::ParticipantTrace& rank);

// Of buffers that are no such layer's (detectors/batch_norm.cpp): how equal replicas move them, each by its own batch.
// Nothing where they stay equal, as far as they were recorded.
std::optional<Reading> moved_alone(const Run& run);
// Buffers were recorded at the start and after updates, and stay equal.
bool buffers_stay_equal(const Run& run);

}  // namespace lockstep::diagnose
