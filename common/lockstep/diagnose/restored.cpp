#include <lockstep/diagnose/restored.h>

namespace lockstep::diagnose {

std::optional<Part> part(const trace::TrainingState& state, const std::string& name) {
  for (std::size_t i = 0; i < state.names.size(); ++i)
    if (state.names[i] == name && i < state.hashes.size() && i < state.devices.size())
      return Part{state.hashes[i], state.devices[i]};
  return std::nullopt;
}

std::vector<Restored> restored(const trace::ParticipantTrace& rank) {
  std::vector<Restored> all, saved;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    const auto* state = rank.events[i].as<trace::TrainingState>();
    if (state == nullptr) continue;
    if (state->moment == "saved") saved.push_back({.saved_place = i, .saved = state});
    if (state->moment != "resumed") continue;
    const auto model = part(*state, "model");
    for (auto last = saved.rbegin(); last != saved.rend(); ++last) {
      const auto of_saved = part(*last->saved, "model");
      if (!model || !of_saved || model->hash != of_saved->hash) continue;
      auto found = *last;
      found.resumed_place = i;
      found.step = rank.events[i].step;
      found.resumed = state;
      all.push_back(found);
      break;
    }
  }
  return all;
}

}  // namespace lockstep::diagnose
