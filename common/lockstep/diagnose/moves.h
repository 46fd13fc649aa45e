// What the updates did to the parameters, held against the gradients that were recorded before them. A sketch is
// linear: p' = p - lr g can be seen tensor by tensor from sketches of p, p' and g, which is what plain SGD does.
#pragma once

#include <lockstep/diagnose/evidence.h>

#include <optional>

namespace lockstep::diagnose {

// Replicas that stay equal, of which a part moves by another rule than the rest: left out or updated twice in one
// update; or, where each rank updates a part and broadcasts it, otherwise than plain SGD in all of them on one rank.
// Nothing where no part moves as plain SGD does.
std::optional<Finding> part_that_moves_otherwise(const Run& run);

// Each tensor moves in every update as plain SGD moves it by one rank's own gradient, and not by their mean.
bool moves_by_one_rank_each(const Run& run);

// How many times the learning rate and the recorded gradient the whole model moves by, in the first update that tells;
// nothing where it does not move as plain SGD moves it by any factor.
std::optional<double> sgd_factor(const Run& run);

}  // namespace lockstep::diagnose
