// Events of a rank among the others: the groups it is in, its collectives, what it decides, how it ends. Part
// of event.h, which says what an event is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::trace {

// The program makes a process group: it begins to join it ("join"), all members are there ("joined"),
// and it lets go of it ("leave"). Or an engine says that its members train one model, each on a share of the data
// ("replicas"). `members` are ranks of the job.
struct Group {
  static constexpr const char* kName = "group";
  std::string action;
  std::string name;  // as `collective` has it
  std::vector<std::int64_t> members;
  template <class V>
  void visit(V& v) {
    v("action", action), v("name", name), v("members", members);
  }
};

// The program decides what it does next, by a number of its own or one that the ranks agreed on: "stop"
// (0 or 1) ends its training.
struct Decision {
  static constexpr const char* kName = "decision";
  std::string name;
  std::int64_t value = 0;
  template <class V>
  void visit(V& v) {
    v("name", name), v("value", value);
  }
};

// The result of an operation that runs beside the program: it was "used" by the program, or "waited"
// for, with what it held then.
struct AsyncResult {
  static constexpr const char* kName = "async_result";
  std::string name;
  std::string moment;
  std::uint64_t content = 0;  // hash of its bytes
  template <class V>
  void visit(V& v) {
    v("name", name), v("moment", moment), v("content", content);
  }
};

// Which attempt of a job this is, by its launcher's count, and how often it would start it again.
struct Attempt {
  static constexpr const char* kName = "attempt";
  std::int64_t restart_count = 0;  // 0: the first
  std::int64_t max_restarts = 0;
  template <class V>
  void visit(V& v) {
    v("restart_count", restart_count), v("max_restarts", max_restarts);
  }
};

// How a rank's process ended, as its launcher saw it (launch::End). In the launcher's own trace; in a rank's, where the
// rank itself told of the exception that ended it.
struct RankEnd {
  static constexpr const char* kName = "rank_end";
  std::int64_t rank = 0;
  std::string how;  // "completed", "raised", "exited", "signalled", "deadline", "stopped"
  std::int64_t exit_code = 0;  // 128 + signal where a signal ended it
  std::int64_t signal = 0;     // 0 where it is not known which
  bool collective = false;     // raised: the exception told of a collective that failed
  std::int64_t ended_ns = 0;   // on the events' clock
  template <class V>
  void visit(V& v) {
    v("rank", rank), v("how", how), v("exit_code", exit_code), v("signal", signal),
        v("collective", collective), v("ended_ns", ended_ns);
  }
};

// What the recorder records no further, since reading it failed: nothing follows from what is missing from here on.
struct RecordingEnd {
  static constexpr const char* kName = "recording_end";
  std::string of;  // "local gradients", ...
  template <class V>
  void visit(V& v) {
    v("of", of);
  }
};

// One collective or point-to-point operation. Written when it is entered; the same record is completed
// in place when its work is done (Event::left_ns).
struct Collective {
  static constexpr const char* kName = "collective";
  std::int64_t failed = 0;    // 1 where the work ended with an error
  std::int64_t sequence = 0;  // from 1, per group
  std::string group;
  std::string op;          // "allreduce", "broadcast", ... as c10d::Backend names it
  std::string reduce_op;   // "sum", "avg", ... or ""
  std::int64_t root = -1;  // or peer, for send and recv; -1 = none
  std::string dtype;
  std::vector<std::int64_t> sizes;  // numel of each tensor passed in
  template <class V>
  void visit(V& v) {
    v("failed", failed), v("sequence", sequence), v("group", group), v("op", op),
        v("reduce_op", reduce_op), v("root", root), v("dtype", dtype), v("sizes", sizes);
  }
};

}  // namespace lockstep::trace
