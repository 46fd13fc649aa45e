#include <lockstep/diagnose/layers.h>

#include <cstdio>

namespace lockstep::diagnose {

std::vector<Layer> layers_in_training(const trace::ParticipantTrace& rank) {
  std::vector<Layer> layers;
  for (const auto& at : rank.latest<trace::Configuration>())
    for (std::size_t i = 0; at.event->of == "statistics" && i < at.event->values.size(); ++i) {
      Layer layer;
      const bool reads = std::sscanf(at.event->keys.at(i).c_str(), "buffer %zu, parameter %zu",
                                     &layer.buffer, &layer.parameter) == 2;
      if (reads && at.event->values[i] == "train") layers.push_back(layer);
    }
  return layers;
}

}  // namespace lockstep::diagnose
