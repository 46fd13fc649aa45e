// Where a job stopped making progress: the first collective that not all of its group's ranks
// completed, and what each of them did about it. The supervisor's verdict on a hang, and what the
// detectors of hangs start from.
#pragma once

#include <lockstep/diagnose/calls.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::diagnose {

enum class RankState {
  waiting,    // entered it, as most do
  elsewhere,  // has not arrived, and is inside of another operation: of another group, or with a peer
  mismatched,  // entered another operation in its place, or the same with other sizes, dtype, ...
  late,        // entered it when a peer had already given up
  absent,      // has not arrived, though it lives, or how it ended is not known
  exited,      // ended in order before it: with code 0, or with its trace closed
  failed,      // ended with another code, without a word
  raised,      // left by an exception of its own
  lost,        // entered it, and its trace ends there while its peers were cut off at once
  dead,        // ended by a signal that the launcher did not send
  stopped,     // frozen by a signal (SIGSTOP)
};
std::string to_string(RankState state);

struct RankAtStall {
  int rank = 0;
  RankState state = RankState::waiting;
  const trace::Collective* call = nullptr;  // in this place; null where it has not arrived
  const trace::Collective* last = nullptr;  // its last one of any group; null where it had none
  const trace::RankEnd* end = nullptr;      // null where the launcher left no word of it
  std::int64_t entered_ns = 0;              // of call
  bool recorded = true;                     // false: it left no trace
};

struct Stall {
  std::string group;
  std::int64_t sequence = 0;
  std::int64_t step = -1;
  std::int64_t time_ns = 0;        // when the first rank entered it
  std::string operation;           // of most of the ranks that entered it
  std::vector<RankAtStall> ranks;  // of the group

  // Those to look at first: of what can explain a stall (a death, a stop, an exception, an
  // exit, a mismatch, an absence, lateness, waiting elsewhere) the first kind that any rank shows.
  // None where every rank waits.
  std::vector<const RankAtStall*> culprits() const;
};

// A collective that was under way for longer, when the job ended, is one that somebody waited in.
inline constexpr std::chrono::milliseconds kStallTime{500};
inline constexpr std::int64_t kStallTimeNs = std::chrono::nanoseconds(kStallTime).count();

// Nothing where no rank was left inside of a collective, and none failed, but for places that all
// ranks of the group got past. A group's ranks are those that its `group` event names; without one,
// those that used it; and every rank of the job for the group that most of them used, if more than
// half of them did or there is no other. What is still under way at the end counts when somebody
// waited for kStallTime and has ended, or a rank of the group has ended by itself. Of a job that was told to end, what
// fails afterwards does not count, and the wait must be twice as long as any that came to an end, but for a group's first;
// the same where a rank is gone and nothing says how. A rank whose trace is truncated,
// or that recorded no collective and ended in order, may have been anywhere: it is left out.
// With a shorter `patience`, 0 for any wait at all: where the ranks of a job were that was ended from
// outside, or still runs. It may have been about to go on.
std::optional<Stall> stall_of(const trace::Trace& trace,
                              std::chrono::milliseconds patience = kStallTime);
std::optional<Stall> stall_of(trace::Trace&& trace,
                              std::chrono::milliseconds patience = kStallTime) =
    delete;                                            // it points into the trace
const std::optional<Stall>& stall_of(const Run& run);  // of kStallTime
// Every rank closed its trace, and none was left waiting in a collective. (A rank that a peer left may still close its
// trace.)
bool ended_in_order(const Run& run);

// "rank 1 has not arrived at allreduce number 7; its last was broadcast number 6", a line for each
// rank that does not merely wait, then one for those that do. Where all of them do, it is what is
// between them that does not answer.
std::string to_text(const Stall& place);
std::string one_line(const Stall& place);  // the same, "; " between

}  // namespace lockstep::diagnose
