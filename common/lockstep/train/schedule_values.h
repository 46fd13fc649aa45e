// Internal to the schedules.
#pragma once

#include <torch/optim/optimizer.h>

namespace lockstep::detail {

// What load_schedule_values left for this optimizer's first schedule has been taken.
void values_are_taken(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::detail
