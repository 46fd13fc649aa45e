// The ledger of a run: for each equation (equations.h) whether it held. It is made of what the detectors said, and of
// counts of what was recorded. That of two runs (compare/compare.h) has the same lines.
#pragma once

#include <lockstep/diagnose/equations.h>
#include <lockstep/diagnose/finding.h>
#include <lockstep/diagnose/run.h>

#include <cstdint>
#include <optional>
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

// What two runs have where they part.
struct Apart {
  std::string a, b;
  double distance = 0;   // relative; 0 where these are no numbers
  double tolerance = 0;  // that it exceeds
};

struct Line {
  Equation equation{};
  Standing standing = Standing::open;
  std::string looked_at = {};  // of held and broken: "5 of 40 updates"
  std::string reason = {};     // of open and idle; of two runs what else is to be known
  // Of broken: of the violation that shows first, as Finding has them; or of what differs first between two runs. Of
  // open, where two readings are: where it shows.
  std::vector<int> ranks = {};
  std::int64_t step = -1, after = -1;
  std::string evidence = {};
  // Pitfalls, the one that shows first in front; or what differs: "gradient of fc1.weight".
  std::vector<std::string> broken_by = {};
  std::optional<Apart> apart = {};  // of two runs
};
std::string ledger_json(const std::vector<Line>& ledger);  // as job.schema.json says

// What there was to look at, on the rank that recorded most of it.
struct Looked {
  std::int64_t at = 0;
  std::string noun = {};     // "batch"
  std::int64_t of = -1;      // how many there were, where not all were recorded
  bool is_enough = false;    // it held where no detector says a word
  std::string idle = {};     // where `at` is 0: what did not take place; "": it does in every run
  std::string missing = {};  // or what was not recorded, and what to do
};
Looked looked_at(const Run& run, Equation equation);

// What a detector said of the run.
struct Row {
  std::string slug;
  Verdict verdict;
};

// A line for each equation, in order. `rows` has one for each detector, in order.
std::vector<Line> ledger_of(const Run& run, const std::vector<Row>& rows);

}  // namespace lockstep::diagnose
