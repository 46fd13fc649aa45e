// What ranks call within an update, against what all of them called in the update before.
#pragma once

#include <lockstep/diagnose/calls.h>

#include <optional>
#include <vector>

namespace lockstep::diagnose {

// Ranks that call, in a place where the sizes differ, what all of them called elsewhere in the update before.
struct MovedCalls {
  std::vector<int> ranks;
  bool left_out = false;  // it came next, so these left a call out
};
std::optional<MovedCalls> moved_within_the_update(const Run& run, const std::vector<Call>& place);

// Ranks that make a call of their own before an engine's: in the update before, all ranks made the same calls, which
// held as many elements as the engine has. None where that is not so.
std::vector<int> own_before_the_engines(const Run& run, const std::vector<Call>& place);

// Ranks of one gradient engine make the same calls, but from some update on each in another update: there some
// ranks made fewer, though in the update before all made the same. (An update that a rank left out, steps that a loss
// scale left out, or that were not to be reduced, are other faults; a rank that shadows the others in join() makes no
// update.)
struct LeftOut {
  std::vector<int> ranks;
  const std::vector<Call>* place = nullptr;
};
std::optional<LeftOut> left_out_in_an_update(const Run& run);

}  // namespace lockstep::diagnose
