// What a rank trained for itself before the job.
#pragma once

#include <lockstep/trace/reader.h>

namespace lockstep::trace {

// A program may let one rank train another model first, such as one to begin from, while other ranks wait for it in a
// collective of all ranks (group "0"). The events of that training are left out, and the rank's steps are counted from
// its end: else each step would stand beside another step of the other ranks. From the fifth step on, the rank's sampled
// values then belong to other steps than the other ranks'. Nothing is left out where the rank goes on with the same
// model, nor where no such collective was recorded.
void leave_out_alone_before(Trace& attempt);

}  // namespace lockstep::trace
