#include <lockstep/compare/aligned.h>

#include <numeric>

namespace lockstep::compare {
namespace {

std::int64_t updates_of(const diagnose::Run& run) {
  const auto steps = events_by_step<trace::Update>(run);
  return steps.empty() ? 0 : steps.rbegin()->first + 1;
}

}  // namespace

std::vector<std::int64_t> left_out_before(const trace::ParticipantTrace& rank) {
  const auto scaled = rank.all<trace::ScaledStep>();
  if (std::all_of(scaled.begin(), scaled.end(), [](const auto& at) { return at.event->updates; }))
    return {};
  std::vector<std::int64_t> before;
  std::int64_t count = 0;
  for (const auto& event : rank.events) {
    before.push_back(count);
    if (const auto* step = event.as<trace::ScaledStep>(); step && !step->updates) ++count;
  }
  return before;
}

std::vector<std::int64_t> updated_steps(const diagnose::Run& run) {
  std::set<std::int64_t> steps;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Update>()) steps.insert(at.step);
  if (steps.empty() || *steps.rbegin() + 1 == static_cast<std::int64_t>(steps.size())) return {};
  return {steps.begin(), steps.end()};
}

Pair::Pair(const diagnose::Run& of_a, const diagnose::Run& of_b)
    : a(of_a),
      b(of_b),
      same_ranks(of_a.world_size == of_b.world_size && of_a.numbers == of_b.numbers),
      updates_a(updates_of(of_a)),
      updates_b(updates_of(of_b)),
      unit(diagnose::rounding_unit(of_a, of_b)) {}

std::vector<std::size_t> places_in_b(const std::vector<std::string>& a,
                                     const std::vector<std::string>& b) {
  std::vector<std::size_t> places(a.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  if (a == b) return places;
  std::map<std::string, std::size_t> of_b;
  for (std::size_t i = 0; i < b.size(); ++i) of_b[b[i]] = i;
  const bool all_there =
      a.size() == b.size() && of_b.size() == b.size() &&
      std::all_of(a.begin(), a.end(), [&](const auto& name) { return of_b.count(name) > 0; });
  for (std::size_t i = 0; all_there && i < a.size(); ++i) places[i] = of_b.at(a[i]);
  return places;
}

std::size_t place_of(const std::vector<std::size_t>& places, std::size_t i) {
  return i < places.size() ? places[i] : i;
}

std::string name_at(const std::vector<std::string>& names, std::size_t i) {
  return i < names.size() ? names[i] : std::to_string(i);
}

}  // namespace lockstep::compare
