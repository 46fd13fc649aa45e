// How much of a program is recorded: 0 the backend alone, 1 also model, optimizer and gradients, 2 also
// samples and metrics. What less would have shown of a run that recorded more.
#pragma once

#include <lockstep/trace/reader.h>

#include <string>

namespace lockstep::trace {

inline constexpr int kLevels = 3;

// The lowest level that records this kind of event. 0: `collective` and, by the launcher, `rank_end`. 2: what
// tells of samples (data sets, files and shards of them, passes, epochs, ids, the random numbers drawn for
// them), metrics, and the decisions that are made by them. 1: everything else.
int level_of(const std::string& kind);  // by its kName

// The events of `level` and below; who took part, the order and the times stay. Throws UsageError for a level
// that there is not.
Trace at_level(Trace trace, int level);

}  // namespace lockstep::trace
