// Names the pitfalls in what a run recorded.
#pragma once

#include <lockstep/diagnose/finding.h>
#include <lockstep/diagnose/ledger.h>
#include <lockstep/trace/reader.h>

#include <string>
#include <vector>

namespace lockstep::diagnose {

struct Diagnosis {
  std::vector<Row> rows;     // one for each detector, by slug
  std::vector<Line> ledger;  // one for each equation, in order
  // Named violations first, then named advice, then generic findings; each only where no other finding accounts for it.
  std::vector<Finding> findings;
  std::vector<std::vector<int>> replica_groups;  // ranks that train one model (replica_groups.h)
  // A sentence for each rank whose trace lacks a part of what the rank did: nothing found there is no good news.
  std::vector<std::string> incomplete;
  std::string sharded_by;  // the kind of engine that leaves each rank a part of the model; "": none
};
Diagnosis diagnose(const trace::Trace& trace);

}  // namespace lockstep::diagnose
