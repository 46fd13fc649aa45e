// What a rank's flight recorder held: the latest collectives it called, in PyTorch's ring buffer.
// Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp of 2.11 (format 2.10).
#pragma once

#include <lockstep/flight/names.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::flight {

enum class State : std::uint8_t {
  scheduled,  // called; Gloo's entries stay so
  started,    // runs on the GPU
  completed,
};

// One call. Sizes and dtypes are texts as messages show them: "[[4], [2, 3]]", "Float".
struct Entry {
  std::int64_t record = 0;        // counted from 0 on this rank, over all groups
  std::int64_t sequence = 0;      // of collectives, counted from 1 in the group
  std::int64_t p2p_sequence = 0;  // of point-to-point operations
  NameId group = kNoName, group_description = kNoName;
  NameId operation = kNoName;  // "nccl:all_reduce"
  NameId input_sizes = kNoName, output_sizes = kNoName;
  NameId input_dtypes = kNoName, output_dtypes = kNoName;
  NameId call_site = kNoName;  // the innermost frame outside torch: "step at train.py:17"
  State state = State::scheduled;
  bool retired = false;  // nobody watches it any more: done, or timed out
  bool is_p2p = false;
};

// A process group as the rank knows it. NCCL's dumps have them, Gloo's do not.
struct GroupConfig {
  NameId group = kNoName;
  NameId ranks = kNoName;  // global ranks as text: "[0, 1, 2]"
};

struct Dump {
  int rank = -1;               // the file's name says it, not the file
  std::vector<Entry> entries;  // in the order they were recorded
  std::vector<GroupConfig> groups;
  bool is_cut = false;     // the ring buffer was full and has overwritten the oldest calls
  bool has_holes = false;  // only unfinished calls are in it (TORCH_INCLUDE_ONLY_ACTIVE)
};

// A dump's bytes, pickled (protocol 2) or JSON: of NCCL (_dump_nccl_trace, _dump_nccl_trace_json)
// and of Gloo (_dump_fr_trace, _dump_fr_trace_json). Runs nothing that the bytes ask for. The
// dump's rank stays -1. Takes time and memory in proportion to the bytes. Throws Error that says
// what is wrong and where, without the file's name, which it does not know.
Dump parse_dump(std::string_view bytes, Names& names);

}  // namespace lockstep::flight
