// Puts the traces of several machines on one clock.
#pragma once

#include <lockstep/trace/reader.h>

#include <vector>

namespace lockstep::trace {

// Moves the times of `other` to the clock of `first`, where they are of different machines: by their wall clocks.
void to_clock_of(const ParticipantTrace& first, ParticipantTrace& other);

// The same for all ranks of a job, to the first one's. Wall clocks may be wrong, too, and collectives tell by how much:
// from one such as an all-reduce nobody comes back before all have entered it.
void to_one_clock(std::vector<ParticipantTrace>& ranks);

}  // namespace lockstep::trace
