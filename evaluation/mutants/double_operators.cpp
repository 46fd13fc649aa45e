// Two mistakes in one program: naming the one must not hide the other.
#include <algorithm>

#include "operators.h"

namespace lockstep::mutants {
namespace {

const Operator& named(const std::vector<Operator>& all, const std::string& name) {
  return *std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
}

Operator both(const Operator& a, const Operator& b) {
  Operator two = a;
  two.name = a.name + "+" + b.name;
  two.second = b.fault;
  two.apply = [first = a.apply, second = b.apply](Parts& parts) {
    first(parts);
    second(parts);
  };
  std::erase_if(two.engines, [&](Engine engine) { return !b.fits(engine); });
  return two;
}

}  // namespace

std::vector<Operator> double_operators() {
  const auto data = data_operators(), gradient = gradient_operators(), update = update_operators();
  const std::vector<std::pair<Operator, Operator>> pairs{
      {named(gradient, "summed"), named(data, "epoch-not-told")},
      {named(update, "learning-rate-of-one-rank"), named(data, "every-rank-reads-all")},
      {named(gradient, "not-zeroed"), named(data, "evaluation-padded")},
      {named(data, "score-of-one-rank"), named(gradient, "loss-divided-by-ranks")}};
  std::vector<Operator> all;
  for (const auto& [a, b] : pairs) {
    all.push_back(both(a, b));
    all.push_back(both(b, a));
  }
  return all;
}

}  // namespace lockstep::mutants
