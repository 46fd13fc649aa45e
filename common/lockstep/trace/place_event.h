// Events of a rank's process and what is around it: its machine, devices, store, files and children. Part of
// event.h, which says what an event is.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::trace {

// Where this rank's process runs, and what it computes with. Recorded again where the threads change.
struct Place {
  static constexpr const char* kName = "place";
  std::uint64_t node = 0;  // hash of what tells machines apart
  std::int64_t local_rank = 0;
  std::int64_t local_world_size = 1;
  std::int64_t processors = 0;  // that this process may use
  std::int64_t threads = 0;     // that its operators compute with
  template <class V>
  void visit(V& v) {
    v("node", node), v("local_rank", local_rank), v("local_world_size", local_world_size),
        v("processors", processors), v("threads", threads);
  }
};

// A device that this process goes by: it has "chosen" it for its tensors, or it was the "current" one when the
// process group was made, which is what a library takes that is told no other.
struct Device {
  static constexpr const char* kName = "device";
  std::string moment;
  std::int64_t index = 0;    // among the visible ones
  std::int64_t visible = 0;  // how many this process sees
  std::uint64_t id = 0;      // hash of which one it is, wherever it is seen from; 0 = there is none
  template <class V>
  void visit(V& v) {
    v("moment", moment), v("index", index), v("visible", visible), v("id", id);
  }
};

// The program splits its data: into so many shards, of which this rank takes this one.
struct Shard {
  static constexpr const char* kName = "shard";
  std::int64_t num_replicas = 1;
  std::int64_t rank = 0;
  template <class V>
  void visit(V& v) {
    v("num_replicas", num_replicas), v("rank", rank);
  }
};

// The program starts processes, told that they are the ranks of a job of that size (1: on their own).
struct Spawn {
  static constexpr const char* kName = "spawn";
  std::int64_t processes = 0;
  std::int64_t world_size = 1;
  template <class V>
  void visit(V& v) {
    v("processes", processes), v("world_size", world_size);
  }
};

// A file of the data set: the program begins to write it, has written it, or has read it or tried to.
struct DataFile {
  static constexpr const char* kName = "data_file";
  std::string action;         // "write_begin", "write_end", "read"
  std::uint64_t file = 0;     // hash of its path, the same on all ranks that share the folder
  std::uint64_t content = 0;  // hash of its bytes as they are then; 0 = not there, or not looked at
  bool accepted = true;       // read: it was whole
  template <class V>
  void visit(V& v) {
    v("action", action), v("file", file), v("content", content), v("accepted", accepted);
  }
};

// The store by which the ranks find each other: this rank "serves" it at an address, "connects" to it, or has
// "used" it. Recorded when it has come through, or failed.
struct StoreCall {
  static constexpr const char* kName = "store_call";
  std::string action;
  std::string address;  // numeric; "" of a use. "0.0.0.0" and "::" are every interface
  std::int64_t port = 0;
  std::int64_t error = 0;  // errno's number; 0 = none
  template <class V>
  void visit(V& v) {
    v("action", action), v("address", address), v("port", port), v("error", error);
  }
};

}  // namespace lockstep::trace
