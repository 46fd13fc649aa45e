// A recorded job as JSON: what was found in it, and what a page can show of it.
#pragma once

#include <lockstep/diagnose/diagnose.h>
#include <lockstep/report/page.h>
#include <lockstep/trace/reader.h>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace lockstep::report {

std::set<int> missing_ranks(const trace::Trace& trace);  // those without a trace
// A warning where, in one attempt, a rank had ended before another began.
std::optional<std::string> may_be_of_two_runs(const trace::Trace& trace);

// What programs ask for: findings, missing_ranks (`missing`: of any attempt) and every detector's state.
std::string diagnosis_json(const diagnose::Diagnosis& diagnosis, const std::set<int>& missing);

// reports/schema/job.schema.json. `pages`: every pitfall's, by slug.
std::string job_json(const trace::Trace& trace, const diagnose::Diagnosis& diagnosis,
                     const std::set<int>& missing,
                     const std::map<std::string, report::Page>& pages);

}  // namespace lockstep::report
