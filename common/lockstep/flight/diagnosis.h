// Names who keeps a job from going on, from its ranks' flight-recorder dumps, in the pitfalls that traces of a run are
// diagnosed with.
#pragma once

#include <lockstep/diagnose/finding.h>
#include <lockstep/flight/folder.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::flight {

struct Diagnosis {
  // The first place in each group where its ranks part ways; causes before what follows from them. `sequence` is counted
  // in the group, which the evidence names; a send's or a receive's among these.
  //   no-progress                    ranks did not call what others of their group called; or all called it, and it did
  //                                  not start or end on these; or a send has no receive, a receive no send
  //   rank-conditional-collective, order-mismatch
  //                                  ranks called another operation, and their next calls tell how they went astray
  //   collective-mismatch            the same, where they do not
  //   shape-mismatch, dtype-mismatch the same operation, or a send and its receive
  std::vector<diagnose::Finding> findings;
  std::vector<int> missing_ranks;  // must have been there, and left no dump
  std::vector<std::string> notes;  // what the dumps cannot tell
  std::size_t dumps = 0, entries = 0, groups = 0;
};

// Needs no dump whole: a call that was overwritten is unknown, not missing. Time and memory in
// proportion to the entries and the groups' members.
Diagnosis diagnose(Dumps dumps);

}  // namespace lockstep::flight
