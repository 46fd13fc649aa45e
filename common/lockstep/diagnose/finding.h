// What a detector says of a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::diagnose {

enum class Severity {
  violation,  // wrong whatever was meant
  advice,     // may be a choice
};
std::string to_string(Severity severity);

// A line of the program that was recorded.
struct Place {
  std::vector<int> ranks;  // that were there
  std::string file;
  std::int64_t line = 0;
  std::string source;       // what stands there
  std::string raised = {};  // the exception that came from it and ended these ranks; "" = none
};

enum class State {
  found,           // see the findings
  clean,           // looked, and all is well
  not_triggered,   // the trace lacks what this detector needs
  not_applicable,  // cannot show at this world size or size of data
};
std::string to_string(State state);

// What a generic finding may be after all.
struct Nearest {
  std::string pitfall;
  std::string sign;                    // what would show, were it that one
  State state = State::not_triggered;  // what its detector says of this run
  std::string reason = {};             // of not_triggered and not_applicable
};

struct Finding {
  std::string pitfall = {};  // the slug, which Detector::verdict() fills in
  Severity severity = Severity::violation;
  std::vector<int> ranks;  // those at fault; all of them where no side is
  std::int64_t step = -1;  // the first at which it shows; -1 = before training, or no step applies
  std::int64_t sequence = -1;  // of the collective; -1 = none
  std::string evidence;        // one sentence with the figures
  // The last recorded step before `step`, at which it did not show: it began after that one. -1 = not known, or
  // every step is recorded.
  std::int64_t after = -1;
  // What else was found and follows from it; diagnose() fills it in.
  std::vector<std::string> accounts_for = {};
  // Of a generic finding, three; diagnose() fills them in.
  std::vector<Nearest> nearest = {};
  // Which lines of the program it is about; report::add_places() fills it in.
  std::vector<Place> places = {};
};

struct Verdict {
  State state = State::not_triggered;
  std::vector<Finding> findings;
  std::string reason;  // of not_triggered and not_applicable
};
Verdict clean();
Verdict not_triggered(std::string reason);
Verdict not_applicable(std::string reason);
Verdict found(Finding finding);

}  // namespace lockstep::diagnose
