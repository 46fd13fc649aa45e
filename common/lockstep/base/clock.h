// One clock for everything that orders events of several processes of one machine.
#pragma once

#include <cstdint>

namespace lockstep {

// CLOCK_MONOTONIC in nanoseconds: the same clock in every process of a machine, never set back.
std::int64_t monotonic_ns();

}  // namespace lockstep
