// An optimizer's state_dict in Python's layout.
#pragma once

#include <lockstep/train/value.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

// {"state": {index: {"momentum_buffer": tensor, ...}}, "param_groups": [{"lr": ..., "params": [index,
// ...]}]}: parameters are numbered through all groups, options have Python's names and order, those
// that C++ lacks Python's defaults. What learning-rate schedules keep in the groups ("initial_lr")
// is there too. The tensors share the optimizer's memory; the step counts are copies.
//
// For torch::optim's SGD, Adam, AdamW, RMSprop, Adagrad and this library's Adam and AdamW; throws
// UnavailableError for another. It takes the optimizer by reference that is not const because
// torch's own accessors do.
Value state_dict(torch::optim::Optimizer& optimizer);

// Takes over the groups' options and copies of the state, each tensor on its parameter's device and
// of its type (a step count as the optimizer keeps it). Options that C++ lacks must have values that
// change nothing (maximize=False; foreach and fused are only ways to compute). What schedules kept in
// the groups goes to the optimizer's schedules, or to the first one made later (load_schedule_values).
//
// Throws Error, and changes nothing, where the state is of another optimizer or of other parameters:
// another number of groups or of parameters in one, a tensor of another shape than its parameter.
void load_state_dict(torch::optim::Optimizer& optimizer, const Value& state);

}  // namespace lockstep
