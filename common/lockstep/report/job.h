// A recorded job as JSON: what was found in it, and what a page can show of it.
#pragma once

#include <lockstep/diagnose/diagnose.h>
#include <lockstep/trace/reader.h>

#include <set>
#include <string>

namespace lockstep::report {

std::set<int> missing_ranks(const trace::Trace& trace);  // those without a trace

// What programs ask for: findings, missing_ranks (`missing`: of any attempt) and every detector's state.
std::string diagnosis_json(const diagnose::Diagnosis& diagnosis, const std::set<int>& missing);

// All of reports/schema/job.schema.json but the pages, which only the course has.
std::string job_json(const trace::Trace& trace, const diagnose::Diagnosis& diagnosis,
                     const std::set<int>& missing);

}  // namespace lockstep::report
