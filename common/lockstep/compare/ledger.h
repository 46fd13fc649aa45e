// What one aspect's comparison has seen so far.
#pragma once

#include <lockstep/compare/compare.h>

#include <map>
#include <set>
#include <string>

namespace lockstep::compare {

class Ledger {
 public:
  explicit Ledger(Aspect aspect) { result_.aspect = aspect; }

  void recorded(bool in_a, bool in_b);
  void compared(std::int64_t step) { steps_.insert(step); }
  void only_in_a(std::int64_t step) { result_.only_a.push_back(step); }
  void only_in_b(std::int64_t step) { result_.only_b.push_back(step); }

  // Two texts, of one rank or (-1) of all together. `different`: whether they are.
  void texts(std::int64_t step, int rank, const std::string& what, const std::string& a,
             const std::string& b, bool different);
  // Two numbers that may be apart by rounding.
  void numbers(std::int64_t step, int rank, const std::string& what, double a, double b,
               double tolerance);
  // A measured distance of values that are not equal to the bit; it may be 0, where it is too small to be measured.
  void distance(std::int64_t step, int rank, const std::string& what, double distance,
                double tolerance, const std::string& a, const std::string& b);
  // A tensor was compared; and it is not equal to the bit, which `distance` or `texts` is told, too.
  void tensor(const std::string& name);
  void tensor_apart(const std::string& name, const AspectResult::Distance& apart);
  // Not equal to the bit, and near enough.
  void rounding();

  AspectResult done() const;

 private:
  void differ(Difference difference, int rank);

  AspectResult result_;
  std::set<std::int64_t> steps_, differing_;
  std::set<std::string> others_;  // that differ at the first one's step
  using ByStep = std::map<std::int64_t, AspectResult::Distance>;
  ByStep distances_;
  std::vector<std::string> names_;  // of the tensors, in order
  std::map<std::string, ByStep> tensors_;
};

std::string number_text(double value);  // seven digits, or "nan"

}  // namespace lockstep::compare
