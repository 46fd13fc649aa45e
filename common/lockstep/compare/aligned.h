// Two runs side by side: what each recorded, by step and rank.
#pragma once

#include <lockstep/diagnose/run.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::compare {

struct Pair {
  const diagnose::Run& a;
  const diagnose::Run& b;
  bool same_ranks = false;  // as many, with the same numbers: compared one by one
  std::int64_t updates_a = 0, updates_b = 0;
  double unit = 0;

  Pair(const diagnose::Run& a, const diagnose::Run& b);
  // Steps that both runs made. What stands behind the last of them can still be compared.
  std::int64_t updates() const { return std::min(updates_a, updates_b); }
};

// A rank's events of one kind at one step, in order; for every rank as Run::ranks.
template <class T>
using Events = std::vector<std::vector<const T*>>;
template <class T>
using BySteps = std::map<std::int64_t, Events<T>>;

template <class T>
BySteps<T> events_by_step(const diagnose::Run& run) {
  BySteps<T> steps;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->all<T>()) {
      auto& there = steps[at.step];
      there.resize(run.ranks.size());
      there[r].push_back(at.event);
    }
  return steps;
}

template <class T>
bool has(const diagnose::Run& run) {
  return run.kinds.count(T::kName) > 0;
}

// The names of the parameters, as the first rank built them.
std::vector<std::string> parameter_names(const diagnose::Run& run);
// A name, or "NUMBER" where it has none.
std::string name_at(const std::vector<std::string>& names, std::size_t i);

}  // namespace lockstep::compare
