// What a rank trained for itself before the job.
#pragma once

#include <lockstep/trace/reader.h>

namespace lockstep::trace {

// The events of that training are left out, and the rank's steps are counted from its end: else each step would stand
// beside another step of the other ranks. From the fifth step on, the rank's sampled values may then belong to other
// steps than the other ranks'. It is left out
// - where the ranks share another model later, which has none of its parameters (`another_model`), and
//   neither an engine nor calls as large have shared it, as of a probe that each rank throws away;
// - on one rank, such as of a model to begin from, where others wait for it in a collective of all ranks (group "0") and it
//   goes on with other names or shapes.
void leave_out_alone_before(Trace& attempt);

// Whether the rank trained a model that the ranks share: an engine took it over, or calls carried as many numbers of its
// types as it has.
bool shares_a_model(const ParticipantTrace& rank);

}  // namespace lockstep::trace
