// The processors that this process may use.
#pragma once

#include <vector>

namespace lockstep {

// Their numbers, ascending, by the affinity that a launcher or a container has set. At least one.
std::vector<int> processors_of_this_process();

// How many each of several has that share them equally. At least one.
int processors_for_each_of(int sharers);

}  // namespace lockstep
