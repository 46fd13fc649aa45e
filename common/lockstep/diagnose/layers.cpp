#include <lockstep/diagnose/layers.h>

namespace lockstep::diagnose {

std::vector<Layer> layers_of(const trace::ParticipantTrace& rank) {
  std::vector<Layer> layers;
  for (const auto& at : rank.latest<trace::LayerModes>())
    for (const auto& layer : at.event->layers)
      layers.push_back({static_cast<std::size_t>(layer.buffer),
                        static_cast<std::size_t>(layer.parameter), layer.training});
  return layers;
}

std::vector<Layer> layers_in_training(const trace::ParticipantTrace& rank) {
  auto layers = layers_of(rank);
  std::erase_if(layers, [](const Layer& layer) { return !layer.trains; });
  return layers;
}

}  // namespace lockstep::diagnose
