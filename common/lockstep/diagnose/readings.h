// What the numbers of a run show that may be meant, or may be a fault: it is said with both readings, for no detector
// can tell them apart.
#pragma once

#include <lockstep/diagnose/equations.h>
#include <lockstep/diagnose/run.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::diagnose {

struct Reading {
  std::string shows;        // "the gradient is 2 times the mean of the ranks' own"
  std::string right_where;  // "each loss is divided by the number of ranks"
  std::int64_t step = -1;   // the first that shows it
  std::vector<int> ranks = {};
};
// Of ranks that train one model; asked where no detector has found the equation broken.
std::optional<Reading> reading_of(const Run& run, Equation equation);

// The ranks train on other data, and draw the same random numbers for it (detectors/generators.cpp).
std::optional<Reading> drawn_from_one_state(const Run& run);

// A generator of a rank is again in a state that it had, and was in others between (detectors/generators.cpp).
std::optional<Reading> drawn_again(const Run& run);

// A tensor that the model is given is the same on all ranks, and another one is not (detectors/feeding.cpp).
std::optional<Reading> given_alike(const Run& run);

}  // namespace lockstep::diagnose
