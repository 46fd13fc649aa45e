// A finding as data, the same in every report: JSON's, and Python's.
#pragma once

#include <lockstep/diagnose/diagnose.h>

#include <string>

namespace lockstep::report {

// Calls visit(name, value) for the fields of diagnose::Finding. "after" and "accounts_for" are there only where they say
// something.
template <class Visit>
void visit_fields(const diagnose::Finding& finding, const Visit& visit) {
  visit("pitfall", finding.pitfall);
  visit("severity", diagnose::to_string(finding.severity));
  visit("ranks", finding.ranks);
  visit("step", finding.step);
  visit("sequence", finding.sequence);
  visit("evidence", finding.evidence);
  if (finding.after >= 0) visit("after", finding.after);
  if (!finding.accounts_for.empty()) visit("accounts_for", finding.accounts_for);
}

std::string to_json(const diagnose::Finding& finding);

}  // namespace lockstep::report
