#include <lockstep/diagnose/combination.h>

namespace lockstep::diagnose {
namespace {

using Rows = std::vector<std::vector<double>>;

// Row i: the products of gradient i with all of them, and with the reduced one.
Rows normal_equations(const GradientStep& step) {
  Rows rows;
  for (const auto& gradient : step.local) {
    auto& row = rows.emplace_back();
    for (const auto& other : step.local) row.push_back(dot(gradient, other));
    row.push_back(dot(gradient, step.reduced.front()));
  }
  return rows;
}

// Gauss and Jordan. The diagonal of equations like these is what the gradients before do not make up of one.
bool eliminate(Rows& rows) {
  constexpr double kAlike = 1e-6;
  std::vector<double> squares;
  for (std::size_t i = 0; i < rows.size(); ++i) squares.push_back(rows[i][i]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i][i] <= kAlike * squares[i]) return false;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (k == i) continue;
      const double factor = rows[k][i] / rows[i][i];
      for (std::size_t j = i; j < rows[k].size(); ++j) rows[k][j] -= factor * rows[i][j];
    }
  }
  return true;
}

}  // namespace

std::optional<std::vector<double>> factors_of(const GradientStep& step) {
  const auto& reduced = step.reduced.front();
  if (!all_near(step.reduced, reduced, kRounding)) return std::nullopt;
  for (const auto& local : step.local)
    if (local.size() != reduced.size()) return std::nullopt;
  auto rows = normal_equations(step);
  if (!eliminate(rows)) return std::nullopt;
  std::vector<double> factors;
  Vector made(reduced.size(), 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    factors.push_back(rows[i].back() / rows[i][i]);
    if (factors.back() <= 0) return std::nullopt;
    for (std::size_t k = 0; k < made.size(); ++k) made[k] += factors.back() * step.local[i][k];
  }
  return distance(made, reduced) <= kRounding ? std::optional(factors) : std::nullopt;
}

}  // namespace lockstep::diagnose
