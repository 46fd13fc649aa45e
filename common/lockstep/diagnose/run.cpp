#include <lockstep/diagnose/run.h>

#include <algorithm>
#include <array>

namespace lockstep::diagnose {

Run::Run(const trace::Trace& of) : trace(of), world_size(of.world_size) {
  for (const auto& rank : trace.ranks) ranks.push_back(&rank);
  std::sort(ranks.begin(), ranks.end(),
            [](const auto* a, const auto* b) { return a->participant.rank < b->participant.rank; });
  std::array<const char*, std::variant_size_v<trace::Payload>> seen{};
  for (const auto* rank : ranks) {
    numbers.push_back(rank->participant.rank);
    devices = devices || rank->participant.kind == "device";
    for (const auto& event : rank->events)
      if (auto& name = seen[event.payload.index()]; name == nullptr)
        name = std::visit([](const auto& payload) { return payload.kName; }, event.payload);
  }
  for (const char* name : seen)
    if (name != nullptr) kinds.insert(name);
  if (!trace.ends.empty()) kinds.insert(trace::RankEnd::kName);
  complete = world_size > 0 && ranks.size() == static_cast<std::size_t>(world_size);
}

const trace::ParticipantTrace& Run::rank(int number) const {
  const auto at = std::lower_bound(numbers.begin(), numbers.end(), number);
  const bool left_one = at != numbers.end() && *at == number;
  return *ranks.at(left_one ? static_cast<std::size_t>(at - numbers.begin()) : ranks.size());
}

}  // namespace lockstep::diagnose
