// How far two right runs may be apart.
//
// Adding in another order gives another sum, off by a few units of rounding, and each update carries the error on. So the
// tolerance is FACTOR x unit x (1 + step). The factors are ten times the largest that healthy pairs have
// shown (evaluation/pairs/healthy_pairs.py, reports/results/compare_pairs.json).
#pragma once

#include <lockstep/diagnose/run.h>

#include <cstdint>

namespace lockstep::compare {

enum class Quantity { loss, gradient, parameter, buffer, input };

// Of the coarsest dtype that a parameter or an autocast of either run has; float32's where nothing is known.
double rounding_unit(const diagnose::Run& a, const diagnose::Run& b);

double tolerance_of(Quantity quantity, double unit, std::int64_t step);

// Rounding may move one value over the corner of a ReLU, and then one sample's gradient jumps. Where the parameters after
// the step still agree, a gradient may be off by this: about one sample of a batch of 32.
double corner_tolerance();

// Rounding may change for which samples a metric counts: by two samples, as a share of `count`.
double metric_tolerance(double count);

}  // namespace lockstep::compare
