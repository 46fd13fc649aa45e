// How far apart two values may be that should be equal: on two ranks of a run, or in two runs. Each tolerance rests on
// rounding (how numbers are stored and added), on statistics (what right runs have shown), or on taste.
#pragma once

#include <lockstep/diagnose/run.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::diagnose {

// Rounding. Replicas that took the same steps are equal to the bit; ranks on different hardware may round differently.
// One rounding of a float32 is 6e-8 (relative).
constexpr double kReplicaTolerance = 1e-6;
// Rounding. float32 sums in another order differ by 1e-6 or so; a wrong weight by 1e-3 or more.
constexpr double kRounding = 1e-4;
// Rounding. The same formula of doubles in another order.
constexpr double kOfDoubles = 1e-12;

// Statistics. Each update carries the error of those before, so two runs may be apart by FACTOR x unit x (1 + step). The
// factors are ten times the largest that right pairs have shown (evaluation/pairs/healthy_pairs.py).
enum class Quantity { loss, gradient, parameter, buffer, input };
double tolerance_of(Quantity quantity, double unit, std::int64_t step);
// Rounding. Half the distance from 1 to the next number, of the coarsest dtype that a parameter or an autocast of either
// run has; float32's where nothing is known.
double rounding_unit(const Run& a, const Run& b);

// Statistics. Rounding may move one value over the corner of a ReLU: one sample's gradient then jumps, about one of a batch
// of 32. So a gradient may be off by this where the parameters after the step agree.
constexpr double kCorner = 0.03;
// Taste. Corners are rare: where more than one in so many steps has gradients apart, none is taken for one.
constexpr std::size_t kRareCorner = 8;
// Taste. A small parameter is as far off as one with this part of all parameters' norm.
constexpr double kPartOfAll = 0.01;
// Taste. Rounding may change for which samples a metric counts: by two, as a share of `count`.
double metric_tolerance(double count);

}  // namespace lockstep::diagnose
