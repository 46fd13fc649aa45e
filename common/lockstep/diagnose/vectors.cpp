#include <lockstep/diagnose/tolerance.h>
#include <lockstep/diagnose/vectors.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::diagnose {

std::optional<Vector> vector_of(const std::vector<trace::Summary>& values) {
  Vector vector;
  vector.reserve(values.size() * trace::kSketch);
  bool any = false;
  for (const auto& value : values) {
    any = any || !value.sketch.empty();
    for (int i = 0; i < trace::kSketch; ++i) {
      const bool has = static_cast<std::size_t>(i) < value.sketch.size();
      vector.push_back(has ? value.sketch[static_cast<std::size_t>(i)] : 0.0);
      if (!std::isfinite(vector.back())) return std::nullopt;
    }
  }
  if (!any) return std::nullopt;
  return vector;
}

Vector mean(const std::vector<Vector>& vectors, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  Vector result(vectors.front().size(), 0.0);
  for (std::size_t v = 0; v < vectors.size(); ++v)
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += vectors[v][i] * (weights[v] / sum);
  return result;
}

Vector mean(const std::vector<Vector>& vectors) {
  return mean(vectors, std::vector<double>(vectors.size(), 1.0));
}

Vector minus(const Vector& a, const Vector& b) {
  Vector result(a);
  for (std::size_t i = 0; i < result.size(); ++i) result[i] -= b[i];
  return result;
}

Vector times(double factor, Vector vector) {
  for (auto& value : vector) value *= factor;
  return vector;
}

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double norm(const Vector& vector) {
  return std::sqrt(dot(vector, vector));
}

double norm_of(const std::vector<trace::Summary>& values) {
  double square = 0;
  for (const auto& value : values) square += value.norm * value.norm;
  return std::sqrt(square);
}

double distance(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) return 1;
  const double scale = std::max(norm(a), norm(b));
  return scale == 0 ? 0 : norm(minus(a, b)) / scale;
}

bool are_alike(const trace::Summary& a, const trace::Summary& b) {
  if (a.hash == b.hash && a.norm == b.norm) return true;
  // Of two that are not finite nothing can be told; one alone has left the other.
  if (std::isfinite(a.norm) != std::isfinite(b.norm)) return false;
  if (!std::isfinite(a.norm)) return true;
  if (std::abs(a.norm - b.norm) > kReplicaTolerance * std::max(a.norm, b.norm)) return false;
  if (a.sketch.size() != b.sketch.size()) return false;
  double square = 0;
  for (std::size_t i = 0; i < a.sketch.size(); ++i)
    square += (a.sketch[i] - b.sketch[i]) * (a.sketch[i] - b.sketch[i]);
  // The mean square of the projections of a difference estimates its squared norm.
  return std::sqrt(square / trace::kSketch) <= kReplicaTolerance * std::max(a.norm, b.norm);
}

int first_difference(const std::vector<trace::Summary>& a, const std::vector<trace::Summary>& b) {
  if (a.size() != b.size()) return static_cast<int>(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!are_alike(a[i], b[i])) return static_cast<int>(i);
  return -1;
}

bool are_identical(const std::vector<trace::Summary>& a, const std::vector<trace::Summary>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.hash == y.hash; });
}

double angle(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) return 1;
  const double square = dot(b, b), factor = dot(a, b);
  if (square == 0 || factor <= 0) return distance(a, b);
  return distance(a, times(factor / square, b));
}

bool all_near(const std::vector<Vector>& vectors, const Vector& target, double tolerance) {
  return std::all_of(vectors.begin(), vectors.end(),
                     [&](const Vector& v) { return distance(v, target) <= tolerance; });
}

}  // namespace lockstep::diagnose
