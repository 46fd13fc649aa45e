#include <lockstep/diagnose/averaging.h>
#include <lockstep/diagnose/tolerance.h>

#include <algorithm>
#include <iterator>
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
// all the same; or since an update, where the next one found parameters that differ as that one left them. Whatever
// that was for, it averages no parameters.
std::set<Shape> not_averaging(const Run& run) {
  std::set<std::int64_t> apart, apart_before;
  for (const auto& [step, replicas] : replicas_by_step(run))
    if (step >= 0 && groups_of_equal(replicas).tensor >= 0) apart.insert(step);
  for (const auto& [step, ranks] : by_step<trace::BeforeUpdate>(run)) {
    const bool told =
        std::ranges::none_of(ranks, [](const auto* rank) { return rank->values.empty(); });
    if (told ? groups_of_equal(replicas_of(ranks)).tensor >= 0 : apart.count(step - 1) > 0)
      apart_before.insert(step);
  }
  std::set<Shape> shapes;
  for (const auto* rank : run.ranks) {
    std::vector<Shape> of_update, since_update;
    std::int64_t gradients = -1;
    for (const auto& event : rank->events) {
      if (const auto* call = event.as<trace::Collective>())
        for (auto* calls : {&of_update, &since_update}) calls->push_back(shape_of(*call));
      if (event.is<trace::Update>()) since_update.clear();
      if (event.is<trace::Parameters>()) {
        if (apart.count(event.step) > 0 && gradients == event.step)
          shapes.insert(of_update.begin(), of_update.end());
        of_update.clear();
        since_update.clear();
      }
      const auto* before = event.as<trace::BeforeUpdate>();
      if (before && !before->changed && apart_before.count(event.step) > 0)
        shapes.insert(since_update.begin(), since_update.end());
      if (!event.is<trace::ReducedGradients>()) continue;
      gradients = event.step;
      of_update.clear();
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
    const auto next = after.lower_bound(step);  // behind what the ranks held last
    if (step <= 0 || next == after.begin()) continue;
    if (groups_of_equal(std::prev(next)->second).tensor < 0) continue;
    times += are_brought_together(before, step) ? 1 : 0;
  }
  return times >= kOften;
}

bool take_their_mean(const Run& run) {
  if (!run.once(are_averaged)) return false;
  const auto before = by_step<trace::BeforeUpdate>(run);
  int times = 0;
  for (const auto& [step, replicas] : replicas_by_step(run)) {
    if (groups_of_equal(replicas).tensor < 0 || !are_brought_together(before, step + 1)) continue;
    std::vector<Vector> vectors;
    for (const auto* replica : replicas)
      if (auto vector = vector_of(*replica)) vectors.push_back(*std::move(vector));
    const auto given = vector_of(before.at(step + 1).front()->values);
    if (!given || vectors.size() != replicas.size() || distance(*given, mean(vectors)) > kRounding)
      return false;
    ++times;
  }
  return times > 0;
}

namespace {

bool sends_its_part(const trace::ParticipantTrace& rank) {
  const auto models = rank.all<trace::Model>();
  const auto updates = rank.all<trace::Update>();
  if (models.empty() || updates.size() < 2 || !rank.all<trace::Engine>().empty()) return false;
  const auto part = elements_of(*models.back().event);
  std::map<std::int64_t, std::int64_t> sent;  // by how many updates came before
  for (const auto& at : rank.all<trace::Collective>()) {
    const bool its_own = at.event->op == "broadcast" && at.event->root == rank.participant.rank;
    if (its_own || at.event->op.find("allgather") != std::string::npos)
      sent[at.step] += elements_of(*at.event);
  }
  return std::all_of(updates.begin(), updates.end() - 1, [&](const auto& update) {
    const auto found = sent.find(update.step + 1);
    return found != sent.end() && found->second >= part;
  });
}

}  // namespace

bool send_their_parts(const Run& run) {
  return !run.devices && std::all_of(run.ranks.begin(), run.ranks.end(),
                                     [](const auto* rank) { return sends_its_part(*rank); });
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
    const auto updates = rank->all<trace::Update>();
    const auto last = updates.empty() ? -1 : updates.back().step;
    for (const auto& at : rank->all<trace::Collective>()) {
      if (at.step <= since || at.step > last || others.count(shape_of(*at.event)) > 0) continue;
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
