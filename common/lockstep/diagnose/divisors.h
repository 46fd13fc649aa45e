// What the ranks divided their losses by.
#pragma once

#include <lockstep/diagnose/detector.h>

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::diagnose {

// Of each rank, one after another over a step's backwards and their terms.
using Divisors = std::vector<std::vector<double>>;

// The steps in which all ranks have as many; what a GradScaler multiplied by is taken out.
const std::map<std::int64_t, Divisors>& divisors_by_step(const Run& run);

}  // namespace lockstep::diagnose
