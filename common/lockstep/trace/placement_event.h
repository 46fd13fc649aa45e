// Events of a rank's process and what is around it: its machine, devices, streams, memory, store, files and children. Part of
// event.h, which says what an event is.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::trace {

// Where this rank's process runs, and what it computes with. Recorded again where the threads change.
struct Placement {
  static constexpr const char* kName = "placement";
  std::uint64_t node = 0;  // hash of what tells machines apart
  std::int64_t local_rank = 0;
  std::int64_t local_world_size = 1;
  std::int64_t processors = 0;      // that this process may use
  std::uint64_t processor_set = 0;  // hash of which ones
  std::int64_t threads = 0;         // that its operators compute with
  template <class V>
  void visit(V& v) {
    v("node", node), v("local_rank", local_rank), v("local_world_size", local_world_size),
        v("processors", processors), v("processor_set", processor_set), v("threads", threads);
  }
};

// A device that this process goes by: "chosen", for its tensors; or "group", the one that its process group was
// made on (the one it was told of, else the current one).
struct Device {
  static constexpr const char* kName = "device";
  std::string moment;
  std::int64_t index = 0;    // among the visible ones
  std::int64_t visible = 0;  // how many this process sees
  std::int64_t present = 0;  // how many the node has; 0 = not known
  // Hash of which one it is, wherever it is seen from: its UUID, or its own part's where it is divided (MIG).
  // 0 = there is no such device.
  std::uint64_t id = 0;
  template <class V>
  void visit(V& v) {
    v("moment", moment), v("index", index), v("visible", visible), v("present", present),
        v("id", id);
  }
};

// The program splits the data of a phase: into so many shards, of which this rank takes this one.
struct Shard {
  static constexpr const char* kName = "shard";
  std::string phase;
  std::int64_t num_replicas = 1;
  std::int64_t rank = 0;
  template <class V>
  void visit(V& v) {
    v("phase", phase), v("num_replicas", num_replicas), v("rank", rank);
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
  std::string action;      // "write_begin", "write_end", "read"
  std::uint64_t file = 0;  // hash of its path; two nodes may have a file each of one path
  bool accepted = true;    // read: it was whole
  template <class V>
  void visit(V& v) {
    v("action", action), v("file", file), v("accepted", accepted);
  }
};

// The store by which the ranks find each other: this rank "serves" it at an address, "connects" to it, or has
// "used" it. Recorded when it has come through, or failed.
struct StoreCall {
  static constexpr const char* kName = "store_call";
  std::string action;
  std::string
      address;  // numeric; "" of a use, or where the name has none. 0.0.0.0: every interface
  std::int64_t port = 0;
  std::int64_t error = 0;  // errno's number; 0 = none
  template <class V>
  void visit(V& v) {
    v("action", action), v("address", address), v("port", port), v("error", error);
  }
};

// The program gives a device's stream something to do that uses a buffer ("read", "write") or an event
// ("record", "wait"), or has waited itself, until all that a stream was given, or an event, was done
// ("synchronize"). In the order of the program's calls. Streams, buffers and events are known by any numbers
// that tell them apart within the process. Stream 0 is CUDA's legacy default stream, which orders
// itself with all others; streams that wait for each other unasked otherwise are to be told by a record and a wait.
struct StreamUse {
  static constexpr const char* kName = "stream_use";
  std::string action;
  std::int64_t stream = -1;  // synchronize: -1 = an event, or, without one, all streams
  std::uint64_t buffer = 0;
  std::uint64_t event = 0;
  template <class V>
  void visit(V& v) {
    v("action", action), v("stream", stream), v("buffer", buffer), v("event", event);
  }
};

// The program is about to "reserve" shared memory, and will use all of it; or could not reserve it ("failed").
struct SharedMemory {
  static constexpr const char* kName = "shared_memory";
  std::string action;
  std::uint64_t file_system = 0;  // hash of which one it is, the same on all ranks that share it
  std::int64_t needed = 0;        // bytes
  std::int64_t free = 0;          // bytes that it has, before this
  std::int64_t total = 0;
  std::int64_t error = 0;  // failed: errno's number
  template <class V>
  void visit(V& v) {
    v("action", action), v("file_system", file_system), v("needed", needed), v("free", free),
        v("total", total), v("error", error);
  }
};

}  // namespace lockstep::trace
