// Events of checkpoints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::trace {

// A checkpoint's file: the program begins to write it, has written it, or has read it or tried to.
struct CheckpointFile {
  static constexpr const char* kName = "checkpoint_file";
  std::string action;         // "save_begin", "save_end", "load"
  std::uint64_t file = 0;     // hash of its path, the same on all ranks that share the folder
  std::uint64_t content = 0;  // hash of its bytes as they are then; 0 = not there, or not looked at
  bool accepted = true;       // load: a whole checkpoint was read; false = refused, or not there
  std::int64_t local_rank = 0;
  std::string device;             // that this rank trains on
  std::vector<std::string> from;  // load: the devices that the file's tensors were saved from
  std::vector<std::string> to;    // load: and those they went to
  // save_end: the names at the top of what was saved, if it is a dict; load: the names in the model's state
  std::vector<std::string> keys;
  template <class V>
  void visit(V& v) {
    v("action", action), v("file", file), v("content", content), v("accepted", accepted),
        v("local_rank", local_rank), v("device", device), v("from", from), v("to", to),
        v("keys", keys);
  }
};

// A module was given a state that need not fit (`strict` is off): how many of its names the state has, and the first name
// of each that the other lacks.
struct StateTaken {
  static constexpr const char* kName = "state_taken";
  std::string module;  // its class
  std::int64_t names = 0, taken = 0;
  std::string missing, unexpected;  // "": none
  template <class V>
  void visit(V& v) {
    v("module", module), v("names", names), v("taken", taken), v("missing", missing),
        v("unexpected", unexpected);
  }
};

// What this rank's program holds, when all ranks have come to a checkpoint and when it goes on from
// one: its parts ("model", "optimizer", "scheduler", "rng_state", "average"; those that it has), for
// each a hash of its values and the devices its tensors are on. "loaded" is of the "model" alone, at the job's end, where
// it took other weights after its last update.
struct TrainingState {
  static constexpr const char* kName = "training_state";
  std::string moment;  // "saved", "resumed", "loaded"
  std::vector<std::string> names;
  std::vector<std::uint64_t> hashes;
  std::vector<std::string> devices;  // "cpu"; "cpu, cuda:0" where there are several
  template <class V>
  void visit(V& v) {
    v("moment", moment), v("names", names), v("hashes", hashes), v("devices", devices);
  }
};

}  // namespace lockstep::trace
