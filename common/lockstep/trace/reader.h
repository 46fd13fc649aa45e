// Reads traces back: of a finished run, a killed one, or one still running.
#pragma once

#include <lockstep/trace/events_of.h>
#include <lockstep/trace/kind_index.h>
#include <lockstep/trace/recorded_event.h>
#include <lockstep/trace/writer.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::trace {

struct ParticipantTrace {
  Participant participant;
  bool closed = false;  // the writer ended in order
  std::vector<Event> events;
  std::int64_t pid = 0;
  std::int64_t started_ns = 0;       // on the events' clock
  std::int64_t started_unix_ns = 0;  // the same moment by the wall clock
  // The writer had no room for more, or its program went on unrecorded: what happened after the last event is not known.
  bool truncated = false;
  bool had_no_room = false;  // the former
  bool runs = false;         // its writer still did when the folder was read, on this machine
  // Where several attempts of a job stand one behind the other: the last one's first event.
  std::size_t last_attempt = 0;

  // All events of one kind, in order. They point into this trace.
  template <class T>
  EventsOf<T> all() const& {
    return from<T>(0);
  }
  template <class T>
  EventsOf<T> all() const&& = delete;  // of a temporary they would point nowhere
  // Those of the last attempt.
  template <class T>
  EventsOf<T> latest() const& {
    return from<T>(last_attempt);
  }
  template <class T>
  EventsOf<T> latest() const&& = delete;

  // Where it is not empty, all() reads it and not the list of events. diagnose::Run makes it, for as long as it lives;
  // the events must not change meanwhile.
  mutable KindIndex index = {};

  // Those among the events [first, end).
  template <class T>
  EventsOf<T> from(std::size_t first, std::size_t end = SIZE_MAX) const& {
    if (!index.empty()) {
      const auto places = index.of(kind_of<T>());
      const auto begin = std::lower_bound(places.begin(), places.end(), first);
      return {events.data(), std::span(begin, std::lower_bound(begin, places.end(), end))};
    }
    std::vector<std::uint32_t> places;
    for (std::size_t i = first; i < std::min(end, events.size()); ++i)
      if (events[i].is<T>()) places.push_back(static_cast<std::uint32_t>(i));
    return {events.data(), std::move(places)};
  }
  template <class T>
  EventsOf<T> from(std::size_t first, std::size_t end = SIZE_MAX) const&& = delete;
};

struct Trace {
  int world_size = 0;
  std::vector<ParticipantTrace> ranks;  // by rank; a rank without a file is absent
  // Other processes that took themselves for rank 0 of 1, while the one in `ranks` did so too.
  std::vector<ParticipantTrace> alone;
  // How the ranks ended: each by its own word, else by its launcher's; empty where nobody left one.
  std::vector<RankEnd> ends;
};

// The files of a job's folder.
std::filesystem::path trace_file(const std::filesystem::path& folder, int rank);
std::filesystem::path launcher_file(const std::filesystem::path& folder);
// By its name: rank_<number>.trace, or rank_<number>.<hex digits>.trace.
bool is_of_a_rank(const std::filesystem::path& file);
// Its writer still runs, on this machine: it holds a lock on the file until it ends.
bool is_being_written(const std::filesystem::path& file);
// A process of this rank joined a group, or entered a collective. Throws as read_file does.
bool has_joined(const std::filesystem::path& folder, int rank);

// Every trace in `folder` that is_of_a_rank, and launcher.trace where there is one. Each is a regular file, and no link.
// Of two traces of one rank, that counts whose process joined the job's groups: the other one's was started by the rank.
// Times are on the first rank's clock: another machine's are moved by the difference of the wall clocks. A record
// that was not committed is ignored. Throws Error, with the file, the offset and what was expected, for a file that is
// not a trace, is of another version, or is damaged, and when the folder holds none. Never reads or allocates more than
// the file's size justifies.
Trace read(const std::filesystem::path& folder);
ParticipantTrace read_file(const std::filesystem::path& file);

// What a participant is inside of, now or when it died: a page and a few records of its trace are
// read, however long that is.
struct FlightBoard {
  Participant participant;
  std::int64_t pid = 0;
  bool closed = false;
  std::uint64_t entered = 0;  // collectives so far
  std::uint64_t left = 0;
  // Entered and not left, oldest first; every payload is a Collective. At most 64: where
  // entered - left is more, the rest is in the trace only.
  std::vector<Event> in_flight;
  bool truncated = false;  // the writer had no room: what was entered since is not known
};
FlightBoard read_flight_board(const std::filesystem::path& file);  // throws as read_file does

}  // namespace lockstep::trace
