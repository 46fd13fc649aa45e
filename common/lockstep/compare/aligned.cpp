#include <lockstep/compare/aligned.h>
#include <lockstep/compare/tolerance.h>

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

Pair::Pair(const diagnose::Run& of_a, const diagnose::Run& of_b)
    : a(of_a),
      b(of_b),
      same_ranks(of_a.world_size == of_b.world_size && of_a.numbers == of_b.numbers),
      updates_a(updates_of(of_a)),
      updates_b(updates_of(of_b)),
      unit(rounding_unit(of_a, of_b)) {}

std::string name_at(const std::vector<std::string>& names, std::size_t i) {
  return i < names.size() ? names[i] : std::to_string(i);
}

}  // namespace lockstep::compare
