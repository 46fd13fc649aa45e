// Writes one participant's trace into a memory-mapped file. A killed or stopped program leaves
// every record that was committed; see trace.md for the encoding.
#pragma once

#include <lockstep/trace/event.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace lockstep::trace {

// Who writes: a rank of a job, a device of a process that drives several (lesson 02), or the launcher
// of the job's ranks.
struct Participant {
  int rank = 0;  // 0 for a launcher
  int world_size = 1;
  std::string kind = "process";  // or "device", "launcher"
};

// Thread-safe; not collective; never blocks on a peer. A call asks the system whether the file is as it was; and now and
// then for more of it (1 MiB, reserved on disk first, so that a full disk is no SIGBUS).
//
// Once it exists, no call fails: the program that is recorded must not end for its trace's sake. Its descriptor has a
// high number, so that the program's own have the usual ones; if the program closes it, the file is opened again.
// Where there is no room (a full disk, no address space, 4 GiB written) the trace ends there: it is
// marked as truncated, stderr is told once, and what comes later is dropped, even when there is
// room again. So it is where the file was cut or removed, but for the mark.
class Writer {
 public:
  // Creates <folder>/rank_<r>.trace, or launcher.trace; throws Error when it is there already or cannot be made, and
  // UsageError for a rank outside 0 .. world_size-1 or a kind of more than 15 bytes.
  Writer(const std::filesystem::path& folder, const Participant& participant);
  ~Writer();  // cuts the file to its length
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  const Participant& participant() const;
  // False in a process that was forked from the one that made it: what is written there is left out.
  bool is_of_this_process() const;

  // `name` as the name of one of this trace's process groups: as it is the first time, then with a
  // number ("0", "0#2", "0#3"), so that collectives of two groups cannot be taken for one's. Ranks
  // that make their groups in the same order give them the same names.
  std::string name_group(const std::string& name);

  // The step that later events carry.
  void set_step(std::int64_t step);
  std::int64_t step() const;

  void record(const Payload& payload);

  // Records a collective as entered and returns its handle; `leave` completes that record in place,
  // from any thread. Between the two it stands on the flight board (the file's head). A collective
  // that found no room has the handle 0, with which `leave` does nothing.
  std::uint64_t enter(const Collective& collective);
  void leave(std::uint64_t handle, bool failed);

  // The trace ends in order, while others may still hold this writer: what comes later is dropped, but for leaving a
  // collective. Where the program `goes_on` unrecorded, the trace is marked as truncated, too. A second call does nothing.
  void end(bool goes_on);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::trace
