// What a rank trained for itself before the job.
#pragma once

#include <lockstep/trace/reader.h>

namespace lockstep::trace {

// A program may let one rank train another model first, such as one to begin from, while the others wait for it in the
// first collective that all make. That rank's updates of before, and what belongs to them, are left out, and its steps
// are counted from there: else each of its steps would stand beside another of the other ranks'. Nothing is left out
// where every rank had updated by then, nor where the rank goes on with the model that it had.
void leave_out_alone_before(Trace& attempt);

}  // namespace lockstep::trace
