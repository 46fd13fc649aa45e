#include <lockstep/diagnose/averaging.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

namespace lockstep::diagnose {
namespace {

bool are_equal(const Replicas& replicas, std::size_t tensor) {
  const auto of = [&](const auto* values) { return std::vector{values->at(tensor)}; };
  return std::all_of(replicas.begin(), replicas.end(), [&](const auto* values) {
    return first_difference(of(values), of(replicas.front())) < 0;
  });
}

// Group, operation and sizes of a collective.
using Shape = std::tuple<std::string, std::string, std::vector<std::int64_t>>;
Shape shape_of(const trace::Collective& call) {
  return {call.group, call.op, call.sizes};
}

// As a piece of the parameters that is averaged.
bool is_large(const trace::Collective& call, double elements) {
  return static_cast<double>(elements_of(call)) >=
         std::min(elements, std::max(64.0, elements / 100));
}

// What ran between the gradients of an update and the parameters that were recorded after it, which differ by rank
// all the same; or between those parameters and the next update, which found them as they were. Whatever that was for,
// it averages no parameters.
std::set<Shape> not_averaging(const Run& run) {
  std::set<std::int64_t> apart;
  for (const auto& [step, replicas] : replicas_by_step(run))
    if (step >= 0 && groups_of_equal(replicas).tensor >= 0) apart.insert(step);
  std::set<Shape> shapes;
  for (const auto* rank : run.ranks) {
    std::vector<Shape> since;  // the gradients of an update that were recorded, or the parameters
    std::int64_t gradients = -1;
    bool are_apart = false;
    for (const auto& event : rank->events) {
      if (const auto* call = event.as<trace::Collective>()) since.push_back(shape_of(*call));
      const auto* before = event.as<trace::BeforeUpdate>();
      const bool updated = event.is<trace::Parameters>();
      if (updated) are_apart = apart.count(event.step) > 0;
      const bool of_one_update = updated && gradients == event.step;
      if (are_apart && (of_one_update || (before && !before->changed)))
        shapes.insert(since.begin(), since.end());
      if (event.is<trace::ReducedGradients>()) gradients = event.step;
      if (updated || event.is<trace::ReducedGradients>()) since.clear();
    }
  }
  return shapes;
}

}  // namespace

bool are_brought_together(const BeforeUpdates& before, std::int64_t step) {
  const auto found = before.find(step);
  if (found == before.end()) return false;
  const auto& ranks = found->second;
  return std::all_of(ranks.begin(), ranks.end(), [](const auto* rank) { return rank->changed; }) &&
         groups_of_equal(replicas_of(ranks)).tensor < 0;
}

bool are_averaged(const Run& run) {
  constexpr int kOften = 2;
  const auto& after = replicas_by_step(run);
  const auto before = by_step<trace::BeforeUpdate>(run);
  int times = 0;
  for (const auto& [step, ranks] : before) {
    const auto last = after.find(step - 1);
    if (step == 0 || last == after.end() || groups_of_equal(last->second).tensor < 0) continue;
    times += are_brought_together(before, step) ? 1 : 0;
  }
  return times >= kOften;
}

std::optional<NeverAveraged> left_out_of_averages(const Run& run) {
  const auto& steps = replicas_by_step(run);
  const auto tensors = steps.begin()->second.front()->size();
  const auto are_whole = [&](const Replicas& replicas) {
    return std::all_of(replicas.begin(), replicas.end(),
                       [&](const auto* values) { return values->size() == tensors; });
  };
  std::vector<std::int64_t> apart_since(tensors, -1);
  std::vector<bool> may_be_left_out(tensors, true);
  for (const auto& [step, replicas] : steps) {
    if (step < 0) continue;
    if (!are_whole(replicas)) return std::nullopt;
    for (std::size_t t = 0; t < tensors; ++t) {
      const bool equal = are_equal(replicas, t);
      may_be_left_out[t] = may_be_left_out[t] && !equal;
      if (!equal && apart_since[t] < 0) apart_since[t] = step;
    }
  }
  bool others_meet = false;
  for (const auto& [step, events] : by_step<trace::BeforeUpdate>(run)) {
    Replicas replicas;
    for (const auto* event : events)
      if (event->changed) replicas.push_back(&event->values);
    if (replicas.size() != events.size() || !are_whole(replicas)) continue;
    std::vector<bool> apart(tensors);
    bool any_meets = false;
    for (std::size_t t = 0; t < tensors; ++t) {
      apart[t] = !are_equal(replicas, t);
      any_meets |= !apart[t] && apart_since[t] >= 0 && apart_since[t] < step;
    }
    if (!any_meets) continue;
    others_meet = true;
    for (std::size_t t = 0; t < tensors; ++t) may_be_left_out[t] = may_be_left_out[t] && apart[t];
  }
  const auto first = std::find(may_be_left_out.begin(), may_be_left_out.end(), true);
  if (!others_meet || first == may_be_left_out.end()) return std::nullopt;
  const auto tensor = static_cast<std::size_t>(first - may_be_left_out.begin());
  return NeverAveraged{tensor, apart_since[tensor]};
}

bool ends_apart(const Run& run, double elements) {
  const auto& last = *replicas_by_step(run).rbegin();
  if (groups_of_equal(last.second).tensor < 0) return false;
  return std::all_of(run.ranks.begin(), run.ranks.end(), [&](const auto* rank) {
    bool is_last = false;
    for (const auto& event : rank->events) {
      const auto* call = event.template as<trace::Collective>();
      if (event.template is<trace::Parameters>())
        is_last = event.step == last.first;
      else if (event.template is<trace::Update>() || (call && is_large(*call, elements)))
        is_last = false;
    }
    return rank->closed && is_last;
  });
}

bool may_be_averaged_unseen(const Run& run, std::int64_t since, double elements) {
  const auto others = not_averaging(run);
  for (const auto* rank : run.ranks) {
    std::map<std::int64_t, double> by_step;
    double pieces = 0;
    // An engine that takes over another model sends one rank's parameters to all.
    std::set<std::int64_t> begun;
    for (const auto& at : rank->all<trace::Engine>()) begun.insert(at.step);
    for (const auto& at : rank->all<trace::Collective>()) {
      if (at.step <= since || others.count(shape_of(*at.event)) > 0) continue;
      if (at.event->op == "broadcast" && begun.count(at.step) > 0) continue;
      const auto moved = static_cast<double>(elements_of(*at.event));
      by_step[at.step] += moved;
      if (is_large(*at.event, elements)) pieces += moved;
      if (by_step[at.step] >= elements || pieces >= elements) return true;
    }
  }
  return false;
}

}  // namespace lockstep::diagnose
