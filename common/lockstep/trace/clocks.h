// Puts the traces of several machines on one clock.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstdint>
#include <vector>

namespace lockstep::trace {

inline constexpr std::int64_t kMostTime = std::int64_t{1}
                                          << 60;  // ns, 36 years: times are added and doubled

// At most kMostTime from zero: what a damaged trace says of its clocks may be any number.
std::int64_t moved(std::int64_t time_ns, std::int64_t by_ns);

// Moves the times of `other` to the clock of `first`, where they are of different machines: by their wall clocks.
void to_clock_of(const ParticipantTrace& first, ParticipantTrace& other);

// The same for all ranks of a job, to the first one's. Wall clocks may be wrong, too, and collectives tell by how much:
// from one such as an all-reduce nobody comes back before all have entered it.
void to_one_clock(std::vector<ParticipantTrace>& ranks);

}  // namespace lockstep::trace
