// The ledger of a run: for each equation (equations.h) whether it held. It is made of what the detectors said, and of
// counts of what was recorded.
#pragma once

#include <lockstep/diagnose/equations.h>
#include <lockstep/diagnose/finding.h>
#include <lockstep/diagnose/run.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::diagnose {

enum class Standing {
  held,    // in all that was recorded
  broken,  // a violation says so
  open,    // it cannot be told; `reason` says why
  idle,    // nothing took place for which it could hold
};
std::string to_string(Standing standing);  // "held", "broken", "cannot be told", "nothing to hold"

struct Line {
  Equation equation{};
  Standing standing = Standing::open;
  std::string looked_at = {};  // of held and broken: "5 of 40 updates"
  std::string reason = {};     // of open and idle
  // Of broken: of the violation that shows first, as Finding has them. Of open, where two readings are: where it shows.
  std::vector<int> ranks = {};
  std::int64_t step = -1, after = -1;
  std::string evidence = {};                // of broken
  std::vector<std::string> broken_by = {};  // pitfalls, the one that shows first in front
};

// What a detector said of the run.
struct Row {
  std::string slug;
  Verdict verdict;
};

// A line for each equation, in order. `rows` has one for each detector, in order.
std::vector<Line> ledger_of(const Run& run, const std::vector<Row>& rows);

}  // namespace lockstep::diagnose
