// The parts of lesson 14, one file each, and what they share.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part branches_part();
lockstep::Part two_losses_part();
lockstep::Part freezing_part();
lockstep::Part optimizer_part();

// At its end every step of this lesson adds a "distance" (one_process.h): between its weights and those
// of one process on the global batch. This counts the steps that ended with the right weights, on
// the rank that has the fewest; `wanted` where all is well. A run that dies has fewer.
lockstep::Measured right_steps(const lockstep::Outcomes& outcomes, int wanted);
