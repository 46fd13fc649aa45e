// How much each sample counts in the losses that backward starts from, by what these are divided by.
#pragma once

#include <lockstep/diagnose/readings.h>

#include <optional>

namespace lockstep::diagnose {

// Samples of one update, or of most ranks' updates, do not count alike; or an update of fewer samples than the others is
// divided by as many; or the loss is of fewer numbers than its forward was given samples.
std::optional<Reading> unequal_weights(const Run& run);

}  // namespace lockstep::diagnose
