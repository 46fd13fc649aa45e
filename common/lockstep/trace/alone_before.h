// What a rank trained for itself before the job.
#pragma once

#include <lockstep/trace/reader.h>

namespace lockstep::trace {

// A program may let one rank train another model first, such as one to begin from, while others wait for it in a
// collective of all ranks (group "0"). That rank's events of that are left out, but for those that are the job's, and
// its steps are counted from there: else each of them would stand beside another step of the other ranks. What it
// records in sampled steps only then stands at other steps than theirs, from the fifth on. Nothing is left out where
// the rank goes on with the model that it had, nor where no collective says who waited.
void leave_out_alone_before(Trace& attempt);

}  // namespace lockstep::trace
