// What each rank's backwards brought, and what was all-reduced for them, between two updates.
#pragma once

#include <lockstep/diagnose/evidence.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::diagnose {

// From the loss it starts from to the next one's, or to the update.
struct Backward {
  // The value it starts from over the mean loss of its samples: 1/G for the mean of a G-th part.
  double share = 0;
  double count = 0;  // samples
  // Of a forward: samples, by their hashes, that no earlier one of this update was given.
  std::int64_t new_rows = 0;
  double reduced = 0;                 // elements all-reduced
  double reduced_unwanted = 0;        // of them, while the engine was told not to reduce
  std::vector<std::int64_t> arrived;  // parameters whose gradient came while a reduction was wanted
};

// What a rank recorded from one update to the next. Elements are those of floating-point all-reduces.
struct UpdateSpan {
  std::int64_t step = 0;
  bool backward_ended = false;      // its gradients were looked at, or applied
  bool updated = false;             // false: the trace ends here
  std::vector<Backward> backwards;  // where losses were recorded
  // All that are known; `share` and `count` where losses were recorded.
  std::vector<Backward> begun;
  std::vector<Backward> forwards;     // in training, each until the next; `share` is not known
  std::vector<std::int64_t> arrived;  // as Backward's, of them all
  double samples = 0;                 // drawn, or behind the losses; 0 = not recorded
  std::int64_t cleared = 0;           // backwards of which most gradients were cleared
  double reduced = 0;
  // The model as last recorded, and as it was when a distributed gradient engine took it over.
  std::int64_t parameters = 0, engine_parameters = 0;
  double elements = 0, engine_elements = 0;
};

// Every span of each rank from its first step on, as Run::ranks. A rank's last one may be unfinished.
const std::vector<std::vector<UpdateSpan>>& update_spans(const Run& run);

// The rank's last step was not ended, as far as can be told, and no gradient's arrival was recorded in it:
// what its backward brought is not known. A rank that was killed, or whose trace was full, may be in any step.
bool stopped_unseen(const trace::ParticipantTrace& rank);

// A parameter that gets no gradient in any recorded step, where each goes through the engine's forward and none is
// reduced: the engine waits for it. Nothing where that is not so.
std::optional<std::size_t> waited_for(const Run& run);

// A count, in full: "50890".
std::string whole(double count);

// Of `parameters`, those that did not arrive.
std::vector<std::int64_t> not_arrived(const UpdateSpan& span);

}  // namespace lockstep::diagnose
