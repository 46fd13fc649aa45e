#include "operators.h"

#include <lockstep/base/error.h>
#include <lockstep/base/hash.h>

#include <algorithm>

namespace lockstep::mutants {

bool Operator::fits(Engine engine) const {
  return std::find(engines.begin(), engines.end(), engine) != engines.end();
}

std::string Operator::half() const {
  if (!set.empty()) return set;
  auto words = name;
  if (const auto plus = name.find('+'); plus != std::string::npos)
    words = std::min(name, name.substr(plus + 1) + "+" + name.substr(0, plus));
  return hash_text(words) % 2 == 1 ? "held_out" : "known";
}

std::string Operator::label(Engine engine, const std::map<std::string, std::string>& failed) const {
  const auto shows = [&](const Fault& one) {
    return std::any_of(failed.begin(), failed.end(),
                       [&](const auto& check) { return one.shows_in.count(check.first) > 0; });
  };
  for (const auto* of_two : {&fault, &second}) {
    if (!shows(*of_two)) continue;
    const auto other = of_two->other_labels.find(engine);
    return other == of_two->other_labels.end() ? of_two->label : other->second;
  }
  return failed.empty() ? "" : "unexpected";
}

void after_start(Parts& parts, std::function<void()> act) {
  parts.start = [start = parts.start, act] {
    start();
    act();
  };
}

void optimizer_of_copies(Parts& parts) {
  after_start(parts, [&parts] {
    std::vector<at::Tensor> copies;
    for (const auto& parameter : parts.parameters)
      copies.push_back(parameter.detach().clone().requires_grad_());
    parts.optimizer = parts.program.make_optimizer(copies);
  });
}

std::function<void(Parts&)> reduced_by(std::function<void(Parts&, at::Tensor&)> act) {
  return [act](Parts& parts) {
    parts.reduce = [&parts, act] {
      for (auto& parameter : parts.parameters) act(parts, parameter.mutable_grad());
    };
  };
}

std::vector<Operator> shown_in(const std::set<std::string>& checks, std::vector<Operator> all) {
  for (auto& one : all) one.fault.shows_in = checks;
  return all;
}

std::vector<Operator> one_set(const std::string& name, std::vector<Operator> all) {
  for (auto& one : all) one.set = name;
  return all;
}

std::vector<Operator> unseen_operators() {
  std::vector<Operator> all;
  for (const auto& some :
       {unseen_gradient_operators(), unseen_data_operators(), unseen_benign_operators()})
    all.insert(all.end(), some.begin(), some.end());
  return one_set("unseen", std::move(all));
}

std::vector<Operator> operators() {
  std::vector<Operator> all;
  for (const auto& some :
       {collective_operators(), gradient_operators(), update_operators(), data_operators(),
        benign_operators(), double_operators(), later_operators(), unseen_operators()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

const Operator& find_operator(const std::string& name) {
  static const auto kAll = operators();
  const auto found =
      std::find_if(kAll.begin(), kAll.end(), [&](const auto& one) { return one.name == name; });
  if (found == kAll.end())
    throw UsageError("there is no operator " + name + ": mutant list names them");
  return *found;
}

}  // namespace lockstep::mutants
