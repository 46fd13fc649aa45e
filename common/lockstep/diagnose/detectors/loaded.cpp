// What a model loads while it trains.
#include <lockstep/diagnose/detector.h>

namespace lockstep::diagnose {
namespace {
Verdict loaded_its_own_weights(const Run& run);
}  // namespace

std::vector<Detector> loaded_detectors() {
  return {
      // Rule: after an update a model's load_state_dict() is given the model's own tensors, all of them. Advice: the
      // program may have changed them in place. Not fooled by a state of which a part was replaced, nor by what comes
      // before the first update.
      {.slug = "loaded-its-own-weights",
       .equation = Equation::saved_is_held,
       .line = "update",
       .needs = {"update"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = loaded_its_own_weights},
  };
}

namespace {
Verdict loaded_its_own_weights(const Run& run) {
  std::vector<int> ranks;
  std::string model;
  std::int64_t step = -1;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    if (const auto loads = run.ranks[r]->latest<trace::OwnTensorsLoaded>(); !loads.empty()) {
      ranks.push_back(run.numbers[r]);
      if (step < 0 || loads.front().step < step) step = loads.front().step;
      model = loads.front().event->module;
    }
  if (ranks.empty()) return clean();
  return found({.severity = Severity::advice,
                .ranks = ranks,
                .step = step,
                .evidence = model + " was given a state of its own tensors, which changes nothing: "
                                    "state_dict() shares memory with the model. Copy it where it "
                                    "is kept, such as the best weights"});
}

}  // namespace
}  // namespace lockstep::diagnose
