#include <lockstep/diagnose/finding.h>

#include <utility>

namespace lockstep::diagnose {

std::string to_string(Severity severity) {
  return severity == Severity::violation ? "violation" : "advice";
}

std::string to_string(State state) {
  switch (state) {
    case State::found:
      return "found";
    case State::clean:
      return "clean";
    case State::not_triggered:
      return "not-triggered";
    case State::not_applicable:
      return "not-applicable";
  }
  return "not-triggered";
}

Verdict clean() {
  return {.state = State::clean, .findings = {}, .reason = {}};
}
Verdict not_triggered(std::string reason) {
  return {.state = State::not_triggered, .findings = {}, .reason = std::move(reason)};
}
Verdict not_applicable(std::string reason) {
  return {.state = State::not_applicable, .findings = {}, .reason = std::move(reason)};
}
Verdict found(Finding finding) {
  return {.state = State::found, .findings = {std::move(finding)}, .reason = {}};
}

}  // namespace lockstep::diagnose
