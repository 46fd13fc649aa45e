// Of ranks that train one model: how each is set up, what it is fed, how much its loss weighs. See detectors.h.
#pragma once

#include <lockstep/diagnose/diagnose.h>

namespace lockstep::diagnose {

// Generic. Needs `configuration` of all ranks. Rule: a setting of a submodule that all of them have differs, such as a
// dropout's p.
Verdict configuration_differs(const trace::Trace& trace);

// Generic. The same of an optimizer's parameter group: its type, or an option such as the weight decay. Not fooled by
// ranks that have groups of their own.
Verdict optimizer_differs(const trace::Trace& trace);

// Generic. Needs `input` of all ranks on three steps or more. Rule: on each of them the dtype differs, or the number of
// dimensions. Advice: the sizes differ, but the first and those that vary on a rank; or the mean or the deviation differs
// by far more than between one rank's batches.
Verdict inputs_differ(const trace::Trace& trace);

// Generic. Needs `loss` of all ranks on three steps or more. Rule: on each of them a rank's
// backward() starts from another multiple of its mean loss than the first rank's, always the same.
// Not fooled by unequal batches, whose losses may weigh unequally, by a scaler's scale, nor by a term that is added.
Verdict loss_weight_differs(const trace::Trace& trace);

}  // namespace lockstep::diagnose
