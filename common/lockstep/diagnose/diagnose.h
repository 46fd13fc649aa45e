// Names the pitfall from what a run recorded. A detector is a pure function of the trace: it is
// never told which program ran, and reads no file name, program name or message text.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::diagnose {

enum class Severity {
  violation,  // wrong whatever was meant
  advice,     // may be a choice
};

struct Finding {
  std::string pitfall;  // the slug
  Severity severity = Severity::violation;
  std::vector<int> ranks;  // those at fault; all of them where no side is
  std::int64_t step = -1;  // the first at which it shows; -1 = before training, or no step applies
  std::int64_t sequence = -1;  // of the collective; -1 = none
  std::string evidence;        // one sentence with the figures
  // The last recorded step before `step`, at which it did not show: it began after that one. -1 = not known, or
  // every step is recorded.
  std::int64_t after = -1;
};

enum class State {
  found,           // see the findings
  clean,           // looked, and all is well
  not_triggered,   // the trace lacks what this detector needs
  not_applicable,  // cannot show at this world size or size of data
};
std::string to_string(Severity severity);
std::string to_string(State state);

struct Verdict {
  State state = State::not_triggered;
  std::vector<Finding> findings;
  std::string reason;  // of not_triggered and not_applicable
};

struct Detector {
  std::string slug;
  // The least that must be recorded: 0 the backend alone, 1 model, optimizer and local gradients, 2
  // sample ids and metrics.
  int level = 0;
  Verdict (*detect)(const trace::Trace&);
};
const std::vector<Detector>& detectors();

struct Diagnosis {
  struct Row {
    std::string slug;
    Verdict verdict;
  };
  std::vector<Row> rows;  // one per detector
  // Named pitfalls first; a generic finding (replicas-diverged ...) only where no named one
  // explains it.
  std::vector<Finding> findings;
};
Diagnosis diagnose(const trace::Trace& trace);

}  // namespace lockstep::diagnose
