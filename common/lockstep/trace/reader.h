// Reads traces back: of a finished run, a killed one, or one still running.
#pragma once

#include <lockstep/trace/event.h>
#include <lockstep/trace/writer.h>

#include <filesystem>
#include <vector>

namespace lockstep::trace {

struct ParticipantTrace {
  Participant participant;
  bool closed = false;  // the writer ended in order
  std::vector<Event> events;

  // All events of one kind, in order, with their step and time.
  template <class T>
  struct At {
    std::int64_t step;
    std::int64_t time_ns;
    const T* event;
  };
  template <class T>
  std::vector<At<T>> all() const {
    std::vector<At<T>> found;
    for (const auto& event : events)
      if (const auto* payload = std::get_if<T>(&event.payload))
        found.push_back({event.step, event.time_ns, payload});
    return found;
  }
};

struct Trace {
  int world_size = 0;
  std::vector<ParticipantTrace> ranks;  // by rank; a rank without a file is absent
};

// Every rank_*.trace in `folder`. A record that was not committed is ignored. Throws Error, with
// the file, the offset and what was expected, for a file that is not a trace, is of another
// version, or is damaged, and when the folder holds none. Never reads or allocates more than the
// file's size justifies.
Trace read(const std::filesystem::path& folder);
ParticipantTrace read_file(const std::filesystem::path& file);

}  // namespace lockstep::trace
