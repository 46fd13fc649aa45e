// How a reduced gradient is made of the ranks' own.
#pragma once

#include <lockstep/diagnose/gradients.h>

#include <optional>
#include <vector>

namespace lockstep::diagnose {

// For each rank what its gradient is multiplied by in the reduced one, above 0: 1/W in a mean. By least squares. Nothing
// where ranks go by other gradients, where these are not made of the ranks' own, or where one's is made of the others'.
std::optional<std::vector<double>> factors_of(const GradientStep& step);

}  // namespace lockstep::diagnose
