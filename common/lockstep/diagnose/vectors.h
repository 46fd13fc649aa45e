// Recorded tensors, compared by their projections.
#pragma once

#include <lockstep/trace/event.h>

#include <optional>
#include <vector>

namespace lockstep::diagnose {

// A set of tensors as one vector: their projections, one after another. It adds and scales as the
// tensors do.
using Vector = std::vector<double>;

// Nothing when no tensor has a sketch (no gradient), or a value is not finite.
std::optional<Vector> vector_of(const std::vector<trace::Summary>& values);
Vector mean(const std::vector<Vector>& vectors, const std::vector<double>& weights);
Vector mean(const std::vector<Vector>& vectors);  // each weighs the same
Vector minus(const Vector& a, const Vector& b);
Vector times(double factor, Vector vector);
double dot(const Vector& a, const Vector& b);
double norm(const Vector& vector);  // Euclidean
// Of the tensors as one, from the norm of each.
double norm_of(const std::vector<trace::Summary>& values);
// |a - b| over the larger of |a| and |b|; 0 for two zeros, 1 for different lengths.
double distance(const Vector& a, const Vector& b);
// The same to the multiple of b that lies nearest to a: 0 where a = c b for some c > 0.
double angle(const Vector& a, const Vector& b);
// Each lies within `tolerance` of the target.
bool all_near(const std::vector<Vector>& vectors, const Vector& target, double tolerance);

// Within kReplicaTolerance.
bool are_alike(const trace::Summary& a, const trace::Summary& b);
// The first tensor in which two replicas are not; -1 = none.
int first_difference(const std::vector<trace::Summary>& a, const std::vector<trace::Summary>& b);
// Equal to the bit.
bool are_identical(const std::vector<trace::Summary>& a, const std::vector<trace::Summary>& b);

}  // namespace lockstep::diagnose
