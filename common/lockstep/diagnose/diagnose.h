// Names the pitfalls in what a run recorded.
#pragma once

#include <lockstep/diagnose/finding.h>
#include <lockstep/trace/reader.h>

#include <set>
#include <string>
#include <vector>

namespace lockstep::diagnose {

struct Diagnosis {
  struct Row {
    std::string slug;
    Verdict verdict;
  };
  std::vector<Row> rows;  // one for each detector, by slug
  // Named violations first, then named advice, then generic findings; each only where no other finding accounts for it.
  std::vector<Finding> findings;
  std::set<std::string> recorded;  // kinds of event, by their kName
};
Diagnosis diagnose(const trace::Trace& trace);

}  // namespace lockstep::diagnose
