#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/layers.h>

#include <cstdio>

namespace lockstep::diagnose {

std::vector<Layer> layers_in_training(const trace::ParticipantTrace& rank) {
  std::vector<Layer> layers;
  each_setting(rank.latest<trace::Configuration>(), "statistics",
               [&](std::int64_t, const std::string& places, const std::string& mode) {
                 Layer layer;
                 const bool reads = std::sscanf(places.c_str(), "buffer %zu, parameter %zu",
                                                &layer.buffer, &layer.parameter) == 2;
                 if (reads && mode == "train") layers.push_back(layer);
               });
  return layers;
}

}  // namespace lockstep::diagnose
