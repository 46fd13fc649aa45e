// Names who keeps a job from going on, from its ranks' flight-recorder dumps.
#pragma once

#include <lockstep/flight/folder.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::flight {

// Pitfalls:
//   rank-missing           ranks that did not call a collective that others of their group called
//   collective-mismatch    ranks that called another operation, or with other sizes or dtype
//   collective-unfinished  all called it alike, but it did not start or end on these ranks
//   p2p-unmatched          a send without its receive or the other way round, or unlike it
//   dump-missing           ranks that must have been there and left no dump
struct Finding {
  std::string pitfall;
  std::vector<int> ranks;      // those at fault; all that differ where no side is
  std::string group;           // "0 (default_pg)"; empty where it concerns no group
  std::int64_t sequence = -1;  // of the collective in its group; -1 = none
  std::string operation;       // of most ranks; empty where it is not known
  std::string differs;         // of a mismatch: operation, sizes or dtype
  bool follows = false;        // its ranks wait in another group, which has a finding of its own
  std::string evidence;        // sentences with the figures
};

struct Diagnosis {
  // The first place in each group where its ranks part ways; causes before what follows from them.
  std::vector<Finding> findings;
  std::vector<std::string> notes;  // what the dumps cannot tell
  std::size_t dumps = 0, entries = 0, groups = 0;
};

// Needs no dump whole: a call that was overwritten is unknown, not missing. Time and memory in
// proportion to the entries and the groups' members.
Diagnosis diagnose(Dumps dumps);

// For people, 80 columns.
std::string to_text(const Diagnosis& diagnosis);

}  // namespace lockstep::flight
