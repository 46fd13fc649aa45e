// Two runs side by side: what each recorded, by step and rank.
#pragma once

#include <lockstep/diagnose/run.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::compare {

constexpr std::int64_t kBefore = -1;  // the step of what is recorded before training

struct Pair {
  const diagnose::Run& a;
  const diagnose::Run& b;
  bool same_ranks = false;  // as many, with the same numbers: compared one by one
  std::int64_t updates_a = 0, updates_b = 0;
  double unit = 0;

  Pair(const diagnose::Run& a, const diagnose::Run& b);
  // Steps that both runs made. What was recorded after the last of them can still be compared.
  std::int64_t updates() const { return std::min(updates_a, updates_b); }
  // How many ranks are compared one by one, and the number of the r-th. Of other world sizes the first rank of each run is
  // compared, or all together: a difference then has no rank, -1.
  std::size_t ranks() const {
    return std::min({a.ranks.size(), b.ranks.size(), same_ranks ? SIZE_MAX : 1});
  }
  int rank(std::size_t r) const { return same_ranks ? a.numbers[r] : -1; }
  // The r-th, or nothing where all are looked at together.
  std::optional<std::size_t> only(std::size_t r) const {
    return same_ranks ? std::optional(r) : std::nullopt;
  }
  double tolerance(diagnose::Quantity quantity, std::int64_t step) const {
    return diagnose::tolerance_of(quantity, unit, step);
  }
};

// Where something was compared; rank -1: on all together.
struct At {
  std::int64_t step = kBefore;
  int rank = -1;
};

// A rank's events of one kind at one step, in order; for every rank as Run::ranks.
template <class T>
using Events = std::vector<std::vector<const T*>>;
template <class T>
using BySteps = std::map<std::int64_t, Events<T>>;

// How many steps a GradScaler has left out so far, at each of a rank's events; empty where none is. A left-out step has no
// number of its own in a trace: here it counts as one, or one run's next batch would stand beside the other's last.
std::vector<std::int64_t> left_out_before(const trace::ParticipantTrace& rank);

// The steps in which any rank updated. Empty where these are 0, 1, 2 ...; a trace of several attempts has gaps between them.
std::vector<std::int64_t> updated_steps(const diagnose::Run& run);

template <class T>
BySteps<T> events_by_step(const diagnose::Run& run) {
  BySteps<T> steps;
  const auto& updated = run.once(updated_steps);
  const auto add = [&](std::size_t r, std::int64_t step, std::int64_t left_out, const T* event) {
    if (step >= 0 && !updated.empty())
      step = std::lower_bound(updated.begin(), updated.end(), step) - updated.begin();
    auto& there = steps[step + left_out];
    there.resize(run.ranks.size());
    there[r].push_back(event);
  };
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto left_out = left_out_before(*run.ranks[r]);
    if (left_out.empty())
      for (const auto& at : run.ranks[r]->all<T>()) add(r, at.step, 0, at.event);
    for (std::size_t i = 0; i < left_out.size(); ++i)
      if (const auto& event = run.ranks[r]->events[i]; event.template is<T>())
        add(r, event.step, left_out[i], event.template as<T>());
  }
  return steps;
}

// The same of one step, also where the run has none of a kind there.
template <class T>
Events<T> events_at(const BySteps<T>& steps, std::int64_t step, const diagnose::Run& run) {
  const auto found = steps.find(step);
  return found == steps.end() ? Events<T>(run.ranks.size()) : found->second;
}

template <class T>
std::set<std::int64_t> steps_of_either(const BySteps<T>& a, const BySteps<T>& b) {
  std::set<std::int64_t> steps;
  for (const auto* side : {&a, &b})
    for (const auto& [step, events] : *side) steps.insert(step);
  return steps;
}

// Calls `look`(step, a, b) with all ranks' events of a kind at each step that both runs have.
template <class T, class F>
void for_each_step(const Pair& pair, F look) {
  const auto a = events_by_step<T>(pair.a), b = events_by_step<T>(pair.b);
  for (const auto& [step, in_a] : a)
    if (const auto in_b = b.find(step); in_b != b.end()) look(step, in_a, in_b->second);
}

// Calls `look`(at, a, b) with a rank's events of a kind, where it has some in both runs.
template <class T, class F>
void for_each_rank(const Pair& pair, F look) {
  for_each_step<T>(pair, [&](std::int64_t step, const Events<T>& a, const Events<T>& b) {
    for (std::size_t r = 0; r < pair.ranks(); ++r)
      if (!a[r].empty() && !b[r].empty()) look(At{step, pair.rank(r)}, a[r], b[r]);
  });
}

// Calls `look`(at, a, b) with the k-th events of a kind that both ranks have at a step.
template <class T, class F>
void for_each_in_both(const Pair& pair, F look) {
  for_each_rank<T>(pair, [&](At at, const auto& a, const auto& b) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) look(at, *a[i], *b[i]);
  });
}

// For each of A's names its place in B, where B has the same names in another order; else its own place.
std::vector<std::size_t> places_in_b(const std::vector<std::string>& a,
                                     const std::vector<std::string>& b);
// Of the i-th tensor; its own place where it has no name.
std::size_t place_of(const std::vector<std::size_t>& places, std::size_t i);

// A name, or "NUMBER" where it has none.
std::string name_at(const std::vector<std::string>& names, std::size_t i);

}  // namespace lockstep::compare
