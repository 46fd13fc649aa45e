// Which rank to look at first.
#pragma once

#include <lockstep/launch/launch.h>

#include <optional>
#include <vector>

namespace lockstep::launch {

// The rank whose end explains the others'. A signal, an exit without a word and a rank's own
// exception come before a CollectiveError (its peer's trouble, seen from outside), and that before
// a rank that was ended at the deadline; among equals the earliest. Nothing when all completed or
// were ended at Ctrl-C.
std::optional<int> find_root_cause(const std::vector<RankEnd>& ranks);

}  // namespace lockstep::launch
