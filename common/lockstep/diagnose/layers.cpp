#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/layers.h>

#include <cstdio>

namespace lockstep::diagnose {

std::vector<Layer> layers_of(const trace::ParticipantTrace& rank) {
  std::vector<Layer> layers;
  each_setting(rank.latest<trace::Configuration>(), "statistics",
               [&](std::int64_t, const std::string& places, const std::string& mode) {
                 Layer layer;
                 const bool reads = std::sscanf(places.c_str(), "buffer %zu, parameter %zu",
                                                &layer.buffer, &layer.parameter) == 2;
                 layer.trains = mode == "train";
                 if (reads) layers.push_back(layer);
               });
  return layers;
}

std::vector<Layer> layers_in_training(const trace::ParticipantTrace& rank) {
  auto layers = layers_of(rank);
  std::erase_if(layers, [](const Layer& layer) { return !layer.trains; });
  return layers;
}

}  // namespace lockstep::diagnose
