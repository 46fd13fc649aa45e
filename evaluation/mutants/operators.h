// The library of mutations: each changes one step of a program, or one of its choices.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "oracle.h"
#include "parts.h"

namespace lockstep::mutants {

// Engines that an operator fits, where not all three.
inline const std::vector<Engine> kNotDdp{Engine::by_hand, Engine::sharded};
inline const std::vector<Engine> kReplicated{Engine::ddp, Engine::by_hand};

inline constexpr std::int64_t kChangedStep =
    2;  // the update in which a fault of one update happens

// What the oracle's checks that fail make of a change.
struct Fault {
  // The pitfall, or the generic finding, that the change is where it makes the program wrong; "" of a change that
  // must not. And where an engine makes another pitfall of it.
  std::string label;
  std::map<Engine, std::string> other_labels = {};
  std::set<std::string> shows_in = {};  // the checks that this fault can make fail
};

struct Operator {
  std::string name;
  Fault fault;
  std::function<void(Parts&)> apply;  // on the ranks
  std::function<void(Program&)> choose =
      {};  // before anything is made, the oracle's program too; may be empty
  std::vector<Engine> engines = {Engine::ddp, Engine::by_hand, Engine::sharded};  // that it fits
  Tolerance tolerance = {};
  Fault second = {};     // of two at once
  std::string set = {};  // "later", "unseen": written together after the halves had been looked at

  bool fits(Engine engine) const;
  // Its set, or "known" or "held_out". Half of the first operators were held out until their first run was published:
  // by the hash of the name, so that nobody chooses. Two at once are in one half, whichever comes first.
  std::string half() const;
  // By the oracle: the label of the fault that shows (of two, the first that does), "" where none does, and
  // "unexpected" where a check fails that no fault of this change accounts for.
  std::string label(Engine engine, const std::map<std::string, std::string>& failed) const;
};

std::vector<Operator> collective_operators();
std::vector<Operator> gradient_operators();
std::vector<Operator> update_operators();
std::vector<Operator> data_operators();
std::vector<Operator> benign_operators();
std::vector<Operator> double_operators();  // two at once
std::vector<Operator> later_operators();
std::vector<Operator> unseen_operators();  // the three below

std::vector<Operator> unseen_gradient_operators();
std::vector<Operator> unseen_data_operators();
std::vector<Operator> unseen_benign_operators();

std::vector<Operator> one_set(const std::string& name, std::vector<Operator> all);

// What several operators do. Behind the program's start:
void after_start(Parts& parts, std::function<void()> act);
void optimizer_of_copies(Parts& parts);
// In place of the reduction: makes of one parameter's gradient what the ranks go on with.
std::function<void(Parts&)> reduced_by(std::function<void(Parts&, at::Tensor&)> act);

// They all show in these checks.
std::vector<Operator> shown_in(const std::set<std::string>& checks, std::vector<Operator> all);

std::vector<Operator> operators();                       // all of them
const Operator& find_operator(const std::string& name);  // throws UsageError

}  // namespace lockstep::mutants
