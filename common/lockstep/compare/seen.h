// What was seen so far of each equation in two runs.
#pragma once

#include <lockstep/compare/aligned.h>
#include <lockstep/compare/compare.h>

#include <array>
#include <map>
#include <string>

namespace lockstep::compare {

class Seen {
 public:
  void compared(std::int64_t step) { seen_.steps.insert(step); }
  // Which steps one run alone has events of, while both went on.
  template <class T>
  void lonely(const Pair& pair) {
    const auto a = events_by_step<T>(pair.a), b = events_by_step<T>(pair.b);
    for (const auto step : steps_of_either(a, b))
      if (step >= 0 && step < pair.updates() && a.count(step) != b.count(step))
        (a.count(step) > 0 ? seen_.only_a : seen_.only_b).insert(step);
  }
  void cannot(std::string why) { why_not_ = std::move(why); }  // where nothing is compared

  // Two texts. `different`: whether they are.
  void texts(At at, const std::string& what, const std::string& a, const std::string& b,
             bool different);
  void texts(At at, const std::string& what, const std::string& a, const std::string& b) {
    texts(at, what, a, b, a != b);
  }
  // Two numbers that may be apart by rounding.
  void numbers(At at, const std::string& what, double a, double b, double tolerance);
  // Of values that are not equal to the bit; it may be 0, where it is too small to be measured.
  void distance(At at, const std::string& what, const diagnose::Apart& apart);
  // A tensor was compared; and it is not equal to the bit, which `distance` or `texts` is told, too.
  void tensor(const std::string& name);
  void tensor_apart(const std::string& name, std::int64_t step, Distance apart);
  void forget_tensors() { seen_.tensors.clear(), tensors_.clear(); }
  void rounding() { seen_.to_the_bit = false; }  // not equal to the bit, and near enough

  const Compared& so_far() const { return seen_; }
  // The step of the first difference; nothing: there is none.
  std::optional<std::int64_t> parts_at() const;
  std::size_t differing_steps() const { return differing_.size(); }
  Compared done(diagnose::Equation equation, const Pair& pair) const;

 private:
  void differ(At at, const std::string& what, const diagnose::Apart& apart);

  Compared seen_;
  Steps differing_;
  std::set<std::string> others_;  // that differ at the first one's step
  std::map<std::string, std::size_t> tensors_;
  std::string why_not_;
};

class Ledger {
 public:
  Seen& operator[](diagnose::Equation equation) {
    return seen_[static_cast<std::size_t>(equation)];
  }
  auto begin() const { return seen_.begin(); }
  auto end() const { return seen_.end(); }

 private:
  std::array<Seen, diagnose::kEquations> seen_;
};

std::string number_text(double value);                                 // seven digits, or "nan"
std::string in_both_text(const std::string& a, const std::string& b);  // "1 in A, 2 in B"

}  // namespace lockstep::compare
