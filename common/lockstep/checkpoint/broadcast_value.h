// State that one rank has, to all: Python's broadcast_object_list, for values and tensors, without Python's
// pickle running anything.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/train/value.h>

namespace lockstep {

// Collective, blocks: a few broadcasts, and one for each storage behind the value's tensors. `value` counts on
// rank `root` alone, which gets it back as it is; on the others the tensors are new and on the CPU, and those
// that share memory on the root share it there. Throws CollectiveError; on all ranks Error where a tensor is
// one that a checkpoint cannot hold.
Value broadcast_value(c10d::ProcessGroup& group, const Value& value, int root = 0);

}  // namespace lockstep
