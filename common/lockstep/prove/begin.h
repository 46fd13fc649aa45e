// A C++ job under `lockstep prove`: each rank reads a plan, does what it says, and leaves a file with its updates, as
// python/lockstep_torch/proving/rank.py does for a Python job.
#pragma once

namespace lockstep::prove {

// Whether LOCKSTEP_PROVE names a plan. Then this process is changed and recorded as it says, from now on: before the
// program has made a tensor. It ends when it has made as many updates as it was to make.
bool begin_where_asked();

}  // namespace lockstep::prove
