// One rank's events, cut where an update, a pass or an attempt ends. (What ranks drew in their passes: passes.h.)
#pragma once

#include <lockstep/trace/reader.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::diagnose {

// Tells `what` the place and the event of each that is of one of these kinds, in order.
template <class... Kinds, class What>
void each_of(const trace::ParticipantTrace& rank, std::size_t from, What what) {
  const auto& events = rank.events;
  if (rank.index.empty()) {
    for (std::size_t i = from; i < events.size(); ++i)
      if ((events[i].is<Kinds>() || ...)) what(i, events[i]);
    return;
  }
  std::vector<std::uint32_t> places;
  const auto add = [&](std::span<const std::uint32_t> of_kind) {
    const auto first = std::lower_bound(of_kind.begin(), of_kind.end(), from);
    places.insert(places.end(), first, of_kind.end());
  };
  (add(rank.index.of(trace::kind_of<Kinds>())), ...);
  std::sort(places.begin(), places.end());
  for (const auto place : places) what(place, events[place]);
}

// Events [begin, end) of a rank.
struct Stretch {
  const trace::ParticipantTrace* rank = nullptr;
  std::size_t begin = 0, end = 0;

  std::span<const trace::Event> events() const {
    return std::span(rank->events).subspan(begin, end - begin);
  }
  template <class T>
  trace::EventsOf<T> all() const {
    return rank->from<T>(begin, end);
  }
  template <class T>
  bool has() const {
    return !all<T>().empty();
  }
  template <class T>
  const T* last() const {  // null: none
    const auto found = all<T>();
    return found.empty() ? nullptr : found.back().event;
  }
};

// From behind the update before to this one, with what was recorded right after it.
struct UpdateStretch : Stretch {
  std::int64_t step = -1;
  bool updated =
      false;  // else it was left out for its infinities, or the trace or the attempt ends here
  bool left_out = false;
};
std::vector<UpdateStretch> cut_at_updates(const trace::ParticipantTrace& rank,
                                          std::size_t from = 0);

// From its begin to its end, to the next one of its phase, or to the attempt's end. An evaluation may lie within a pass
// over train data.
struct PassStretch : Stretch {
  std::string phase;
  std::int64_t step = -1, epoch = 0;  // at its begin
  std::int64_t attempt = 0;           // of the job
  bool ended = false;                 // in order

  trace::EventsOf<trace::Samples> batches() const {
    return all<trace::Samples>().where([&](const auto& at) { return at.event->phase == phase; });
  }
};
std::vector<PassStretch> cut_at_passes(const trace::ParticipantTrace& rank,
                                       const std::string& phase, std::size_t from = 0);

}  // namespace lockstep::diagnose
