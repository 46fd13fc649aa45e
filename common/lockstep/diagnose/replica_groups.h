// Which ranks train one model, each on a share of the data. Where a job is more than data parallel, ranks are compared
// within such a group only: others hold another part of the model.
#pragma once

#include <lockstep/diagnose/run.h>

#include <string>
#include <vector>

namespace lockstep::diagnose {

// Each rank of the job is in one, whether it left a trace or not; one group of all where nothing tells them apart. By
// what the ranks told of their engines (`group` with the action "replicas"). A rank of a "tensor_parallel" or
// "pipeline" engine that told no group is alone; so are ranks without an engine that hold other models than each other
// and pass tensors on, from one to one: stages of a pipeline.
// Engines whose groups hold one rank each divide replicas that begin with equal parameters no further: they should have
// been in one group.
std::vector<std::vector<int>> replica_groups(const Run& run);
bool are_alone(const Run& run);  // each told a group of itself

// The kind of engine that leaves each rank a part of the model's parameters ("fully_sharded"); "" where there is none.
const std::string& sharded_by(const Run& run);

}  // namespace lockstep::diagnose
