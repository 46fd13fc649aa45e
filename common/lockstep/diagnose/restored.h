// The state that a rank went on with, beside the one it was saved from.
#pragma once

#include <lockstep/diagnose/evidence.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::diagnose {

struct Part {
  std::uint64_t hash = 0;
  std::string devices;
};
std::optional<Part> part(const trace::TrainingState& state, const std::string& name);

struct Restored {
  std::size_t saved_place = 0, resumed_place = 0;  // among the rank's events
  std::int64_t step = -1;                          // when it resumed
  const trace::TrainingState* saved = nullptr;
  const trace::TrainingState* resumed = nullptr;
};
// For each time the rank resumed, the last saved state before it that has the same model; none where there
// is no such.
std::vector<Restored> restored(const trace::ParticipantTrace& rank);

}  // namespace lockstep::diagnose
